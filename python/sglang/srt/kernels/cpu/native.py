"""The compiled kernels of a CPU: a shared library without Python or torch in it, called by address.

It is built when the package is installed (setup.py) and is optional: without a compiler, or on a
CPU that lacks the instructions it was built for, the torch reference does the same work.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache
from pathlib import Path

import torch

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double

# Arguments of each function: p(ointer), i(nteger), f(loat).
SIGNATURES = {
    "sg_linear": "ppppiiiii",
    "sg_linear_bf16": "ppppiiiii",
    "sg_rms_norm": "pppiiiiif",
    "sg_gated_rms_norm": "ppppiiiiif",
    "sg_silu_and_mul": "ppiii",
    "sg_rotary": "ppppiiiiii",
    "sg_attention_decode": "ppppppppiiiiiif",
    "sg_gated_delta_step": "pppppppppiiiiiiif",
}
_KINDS = {"p": _POINTER, "i": _INT, "f": _FLOAT}


class NativeMissing(RuntimeError):
    """The library cannot be used; the message says why."""


@cache
def library() -> ctypes.CDLL:
    """The loaded library with typed functions.

    Torch must be imported before, so that both use one OpenMP runtime and one thread count.
    Raises NativeMissing.
    """
    built = sorted(Path(__file__).parent.glob("_native*.so"))
    if not built:
        raise NativeMissing("they were not built when the package was installed (no C++ compiler)")
    if platform.machine() in ("x86_64", "AMD64"):
        capability = torch.backends.cpu.get_cpu_capability()
        if not capability.startswith("AVX"):
            raise NativeMissing(f"this CPU has no AVX2 (torch reports {capability})")
    try:
        loaded = ctypes.CDLL(str(built[-1]))
        for name, kinds in SIGNATURES.items():
            function = getattr(loaded, name)
            function.argtypes = [_KINDS[kind] for kind in kinds]
            function.restype = None
    except (OSError, AttributeError) as error:
        raise NativeMissing(
            f"{built[-1].name} is not the library of this source: {error}"
        ) from error
    return loaded
