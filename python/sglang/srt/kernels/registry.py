"""The op table: which implementation of an operation runs on which device.

The plain-torch reference is the CPU implementation and the oracle of all others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang.srt.kernels.reference import attention, conv, gated_delta, norm, pointwise

logger = logging.getLogger(__name__)

Op = Callable[..., Any]

REFERENCE: dict[str, Op] = {
    "rms_norm": norm.rms_norm,
    "gated_rms_norm": norm.gated_rms_norm,
    "silu_and_mul": pointwise.silu_and_mul,
    "rotary": pointwise.rotary,
    "causal_conv_prefill": conv.causal_conv_prefill,
    "causal_conv_decode": conv.causal_conv_decode,
    "gated_delta_prefill": gated_delta.gated_delta_prefill,
    "gated_delta_decode": gated_delta.gated_delta_decode,
    "attention_prefill": attention.attention_prefill,
    "attention_decode": attention.attention_decode,
}

_TABLE: dict[tuple[str, str], Op] = {("cpu", name): op for name, op in REFERENCE.items()}
_said: set[tuple[str, str]] = set()


def register_op(kind: str, name: str, op: Op) -> None:
    """Set the implementation of an op on a device kind. Raises KeyError on an unknown op."""
    if name not in REFERENCE:
        raise KeyError(f"{name} has no reference implementation; add that first")
    _TABLE[kind, name] = op


def get_op(name: str, device: str) -> Op:
    """The implementation of an op for a device ("cpu", "cuda:0"; its kind counts).

    Where a device has none of its own the reference runs there, and the log says so once.
    Raises KeyError on an unknown op.
    """
    kind = device.partition(":")[0]
    found = _TABLE.get((kind, name))
    if found is not None:
        return found
    reference = REFERENCE[name]
    if (kind, name) not in _said:
        _said.add((kind, name))
        logger.warning("no %s kernel for %s: the torch reference is used", kind, name)
    return reference
