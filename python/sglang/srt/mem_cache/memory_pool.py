"""The tensors that requests live in, and the slots that name parts of them.

Every stage holds the tensors of its own layers; all stages share one index space. Only stage 0
allocates and frees. Slot 0 (page 0 of the KV pool) is padding: no request ever holds it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from sglang.srt.mem_cache.allocator import IntArray, OwnerTable, SlotAllocator
from sglang.srt.mem_cache.layer_specs import AttentionSpec, MambaSpec


class SlotHolder(Protocol):
    """What the pools need to know of a request."""

    owner: int
    req_pool_idx: int | None
    mamba_pool_idx: int | None
    mamba_track_idx: int | None


class ReqToTokenPool:
    """One row per running request: the KV slot of each of its positions.

    `req_to_token` (int32 [size + 1, max_context_len], on the device) is what kernels read; every
    stage has it. `rows` is stage 0's own copy on the host, from which plans are made.
    """

    def __init__(self, size: int, max_context_len: int, device: str, owners: OwnerTable) -> None:
        self.size = size
        self.max_context_len = max_context_len
        self.req_to_token = torch.zeros(
            (size + 1, max_context_len), dtype=torch.int32, device=device
        )
        self.rows: npt.NDArray[np.int32] = np.zeros((size + 1, max_context_len), dtype=np.int32)
        self.req_slots = SlotAllocator("request slot", size, owners)

    def available_size(self) -> int:
        """Free request slots."""
        return self.req_slots.available_size()

    def alloc(self, req: SlotHolder) -> bool:
        """Give `req` a request slot. False, and nothing changed, when none is free."""
        assert req.req_pool_idx is None, f"request already holds slot {req.req_pool_idx}"
        slots = self.req_slots.alloc(1, req.owner)
        if slots is None:
            return False
        req.req_pool_idx = int(slots[0])
        return True

    def free(self, req: SlotHolder) -> None:
        """Take the request slot back from `req`."""
        assert req.req_pool_idx is not None, "request holds no request slot"
        self.req_slots.free(_one(req.req_pool_idx), req.owner)
        req.req_pool_idx = None

    def free_mamba_cache(self, req: SlotHolder) -> None:
        """Requests of a model without recurrent layers hold no Mamba slot."""
        assert req.mamba_pool_idx is None, "this pool never gave out a Mamba slot"


class HybridReqToTokenPool(ReqToTokenPool):
    """Request slots of a model with recurrent layers: a request also holds a Mamba slot.

    With `extra_buffer` it holds a second one, `mamba_track_idx`, that receives checkpoints.
    """

    def __init__(
        self,
        size: int,
        max_context_len: int,
        device: str,
        owners: OwnerTable,
        mamba_pool: MambaPool,
        extra_buffer: bool = False,
    ) -> None:
        super().__init__(size, max_context_len, device, owners)
        self.mamba_pool = mamba_pool
        self.extra_buffer = extra_buffer

    @property
    def states_per_request(self) -> int:
        """Mamba slots that a request takes when it is admitted."""
        return 2 if self.extra_buffer else 1

    def alloc(self, req: SlotHolder) -> bool:
        """Request slot and Mamba slot(s) together, or nothing."""
        need = self.states_per_request
        if self.mamba_pool.available_size() < need or not super().alloc(req):
            return False
        slots = self.mamba_pool.alloc(need, req.owner)
        assert slots is not None  # its size was checked above
        req.mamba_pool_idx = int(slots[0])
        req.mamba_track_idx = int(slots[1]) if self.extra_buffer else None
        return True

    def free_mamba_cache(self, req: SlotHolder) -> None:
        """Take the Mamba slot, and the tracking slot if there is one, back from `req`."""
        assert req.mamba_pool_idx is not None, "request holds no Mamba slot"
        self.mamba_pool.free(_one(req.mamba_pool_idx), req.owner)
        req.mamba_pool_idx = None
        if req.mamba_track_idx is not None:
            self.mamba_pool.free(_one(req.mamba_track_idx), req.owner)
            req.mamba_track_idx = None


class MambaPool:
    """Convolution and recurrent state of every recurrent layer of this stage.

    conv_state: [size + 1, conv_dim, conv_kernel - 1] in `conv_dtype`, the last inputs, the oldest
    first.
    temporal_state: [size + 1, *state_shape] in `ssm_dtype`. Layer ids are the model's.
    """

    def __init__(
        self,
        size: int,
        specs: dict[int, MambaSpec],
        conv_dtype: torch.dtype,
        ssm_dtype: torch.dtype,
        device: str,
        owners: OwnerTable | None = None,
    ) -> None:
        self.size = size
        self.slots = SlotAllocator("Mamba slot", size, owners or OwnerTable())
        self._conv = {
            layer: torch.zeros(
                (size + 1, spec.conv_dim, spec.conv_kernel - 1), dtype=conv_dtype, device=device
            )
            for layer, spec in specs.items()
        }
        self._temporal = {
            layer: torch.zeros((size + 1, *spec.state_shape), dtype=ssm_dtype, device=device)
            for layer, spec in specs.items()
            if spec.state_shape
        }

    def conv_state(self, layer_id: int) -> torch.Tensor:
        """Convolution states of one layer, all slots."""
        return self._conv[layer_id]

    def temporal_state(self, layer_id: int) -> torch.Tensor:
        """Recurrent states of one layer, all slots."""
        return self._temporal[layer_id]

    def zero(self, slots: list[int]) -> None:
        """Fresh states: a request that starts from nothing must not see its slot's past."""
        for state in (*self._conv.values(), *self._temporal.values()):
            state[slots] = 0

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copy states (from, to) in all layers. No slot may be both source and target."""
        sources, targets = [a for a, _ in pairs], [b for _, b in pairs]
        for state in (*self._conv.values(), *self._temporal.values()):
            state[targets] = state[sources]

    def available_size(self) -> int:
        """Free Mamba slots."""
        return self.slots.available_size()

    def alloc(self, count: int, owner: int) -> IntArray | None:
        """`count` slots for `owner`, or None (and nothing changed)."""
        return self.slots.alloc(count, owner)

    def free(self, slots: IntArray, owner: int) -> None:
        """Give back slots that `owner` holds. Raises SlotError otherwise."""
        self.slots.free(slots, owner)


class MHATokenToKVPool:
    """Keys and values of every token, per attention layer of this stage.

    k: [size + page_size, num_kv_heads, head_dim], v: [..., v_head_dim]; the first page is padding.
    """

    def __init__(
        self,
        size: int,
        page_size: int,
        specs: dict[int, AttentionSpec],
        dtype: torch.dtype,
        device: str,
    ) -> None:
        self.size = size
        self.page_size = page_size
        rows = size + page_size
        self._k = {
            layer: torch.zeros((rows, s.num_kv_heads, s.head_dim), dtype=dtype, device=device)
            for layer, s in specs.items()
        }
        self._v = {
            layer: torch.zeros((rows, s.num_kv_heads, s.v_head_dim), dtype=dtype, device=device)
            for layer, s in specs.items()
        }

    def get_kv_buffer(self, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Key and value buffers of one layer, all slots."""
        return self._k[layer_id], self._v[layer_id]

    def set_kv_buffer(
        self, layer_id: int, loc: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> None:
        """Store k and v ([tokens, num_kv_heads, dim]) of new tokens at slots `loc` ([tokens])."""
        self._k[layer_id][loc] = k.to(self._k[layer_id].dtype)
        self._v[layer_id][loc] = v.to(self._v[layer_id].dtype)


def _one(slot: int) -> IntArray:
    return np.asarray([slot], dtype=np.int32)
