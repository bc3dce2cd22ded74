"""The op table: which implementation of an operation runs on which device.

The plain-torch reference runs where a device has no kernel of its own, and is the oracle of all
kernels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

from sglang.srt import environ
from sglang.srt.kernels.cpu.native import NativeMissing
from sglang.srt.kernels.cpu.ops import cpu_ops
from sglang.srt.kernels.reference import (
    attention,
    conv,
    gated_delta,
    gated_delta_step,
    moe,
    norm,
    pointwise,
    selective_scan,
    ssd,
)

logger = logging.getLogger(__name__)

Op = Callable[..., Any]

REFERENCE: dict[str, Op] = {
    "linear": pointwise.linear,
    "rms_norm": norm.rms_norm,
    "gated_rms_norm": norm.gated_rms_norm,
    "grouped_rms_norm": norm.grouped_rms_norm,
    "silu_and_mul": pointwise.silu_and_mul,
    "relu_squared": pointwise.relu_squared,
    "rotary": pointwise.rotary,
    "moe_experts": moe.moe_experts,
    "causal_conv_prefill": conv.causal_conv_prefill,
    "causal_conv_decode": conv.causal_conv_decode,
    "gated_delta_prefill": gated_delta.gated_delta_prefill,
    "gated_delta_step": gated_delta_step.gated_delta_step,
    "selective_scan_prefill": selective_scan.selective_scan_prefill,
    "selective_scan_decode": selective_scan.selective_scan_decode,
    "ssd_prefill": ssd.ssd_prefill,
    "ssd_decode": ssd.ssd_decode,
    "attention_prefill": attention.attention_prefill,
    "attention_decode": attention.attention_decode,
}

_TABLE: dict[tuple[str, str], Op] = {}
_said: set[tuple[str, str]] = set()


@cache
def cpu_kernels() -> dict[str, Op]:
    """The compiled kernels of this CPU, by name; none where `SGLANG_CPU_KERNELS` says so.

    Where they are missing the log says why, once; raises NativeMissing when they are asked for.
    """
    wanted = environ.cpu_kernels()
    if wanted == "reference":
        return {}
    try:
        return cpu_ops()
    except NativeMissing as error:
        if wanted == "native":
            raise
        logger.warning("CPU kernels: the torch reference is used, since %s", error)
        return {}


def kernels_in_use(device: str) -> str:
    """ "native" where a device has kernels of its own, "reference" where torch does all."""
    kind = device.partition(":")[0]
    registered = any(owner == kind for owner, _ in _TABLE)
    return "native" if registered or (kind == "cpu" and cpu_kernels()) else "reference"


def register_op(kind: str, name: str, op: Op) -> None:
    """Set the implementation of an op on a device kind. Raises KeyError on an unknown op."""
    if name not in REFERENCE:
        raise KeyError(f"{name} has no reference implementation; add that first")
    _TABLE[kind, name] = op


def get_op(name: str, device: str) -> Op:
    """The implementation of an op for a device ("cpu", "cuda:0"; its kind counts).

    Where a device has none of its own the reference runs there; for a GPU the log says so once.
    Raises KeyError on an unknown op.
    """
    kind, reference = device.partition(":")[0], REFERENCE[name]
    found = _TABLE.get((kind, name))
    if found is not None:
        return found
    if kind in ("cpu", "meta"):  # "meta": nothing is computed
        return cpu_kernels().get(name, reference)
    if (kind, name) not in _said:
        _said.add((kind, name))
        logger.warning("no %s kernel for %s: the torch reference is used", kind, name)
    return reference
