"""A plan as tensors: what the layers of one step read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from sglang.srt.kernels.batch_layout import DecodeLayout, PrefillLayout, PrefillRow
from sglang.srt.managers.step_plan import StepPlan, unpack_ints
from sglang.srt.mem_cache.memory_pool import MambaPool, MHATokenToKVPool


@dataclass(frozen=True)
class PPProxyTensors:
    """Activations between two stages, by name; "hidden_states" is [tokens, hidden]."""

    tensors: dict[str, torch.Tensor]


@dataclass
class ForwardBatch:
    """One step. Decode rows (one token each) come first, prompt chunks after them.

    input_ids, positions, out_cache_loc, table_rows (request slot of each token): [tokens], int64,
    on the device. Row quantities are host lists; what layers share is computed once, on first use.
    """

    plan: StepPlan
    input_ids: torch.Tensor
    positions: torch.Tensor
    out_cache_loc: torch.Tensor
    table_rows: torch.Tensor
    req_to_token: torch.Tensor
    kv_pool: MHATokenToKVPool
    _mamba_pool: MambaPool | None
    device: str
    _shared: dict[int, Any] = field(default_factory=dict)

    @classmethod
    def build(
        cls,
        plan: StepPlan,
        req_to_token: torch.Tensor,
        kv_pool: MHATokenToKVPool,
        mamba_pool: MambaPool | None,
        device: str,
    ) -> ForwardBatch:
        """Tensors of a plan."""
        counts = np.asarray(plan.extend_lens)
        ends = np.cumsum(counts)
        offsets = np.repeat(np.asarray(plan.prefix_lens) - (ends - counts), counts)
        positions = offsets + np.arange(int(ends[-1]))
        table_rows = np.repeat(np.asarray(plan.req_pool_indices), counts)
        return cls(
            plan,
            torch.from_numpy(unpack_ints(plan.input_ids).astype(np.int64)).to(device),
            torch.from_numpy(positions).to(device),
            torch.from_numpy(unpack_ints(plan.out_cache_loc).astype(np.int64)).to(device),
            torch.from_numpy(table_rows).to(device),
            req_to_token,
            kv_pool,
            mamba_pool,
            device,
        )

    def write_page_table(self) -> None:
        """Enter the new tokens' KV slots into the page table; attention reads them from there."""
        table = self.req_to_token
        table[self.table_rows, self.positions] = self.out_cache_loc.to(table.dtype)

    @property
    def num_tokens(self) -> int:
        """Tokens of the step."""
        return self.plan.num_tokens

    @property
    def num_decode_rows(self) -> int:
        """Rows, and tokens, at the front that are decode steps."""
        return self.plan.num_decode_rows

    @property
    def mamba_pool(self) -> MambaPool:
        """The states of this stage's recurrent layers."""
        assert self._mamba_pool is not None
        return self._mamba_pool

    def shared(self, key: int, make: Callable[[], Any]) -> Any:
        """Something that several layers need, made once a step."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def by_kind(
        self,
        decode: Callable[[slice], torch.Tensor],
        prefill: Callable[[slice], torch.Tensor],
    ) -> torch.Tensor:
        """Outputs of all tokens: of the decode rows and of the prompt chunks, each made at once.

        decode, prefill: from the tokens of the kind to their outputs; not called for none.
        """
        cut = self.num_decode_rows
        parts = []
        if cut:
            parts.append(decode(slice(0, cut)))
        if self.num_tokens > cut:
            parts.append(prefill(slice(cut, self.num_tokens)))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @cached_property
    def bounds(self) -> list[int]:
        """Row i has tokens [bounds[i], bounds[i + 1])."""
        return [0, *np.cumsum(self.plan.extend_lens).tolist()]

    @cached_property
    def prefill_bounds(self) -> list[int]:
        """`bounds` of the prefill rows, counted from the first prefill token."""
        cut = self.num_decode_rows
        return [bound - cut for bound in self.bounds[cut:]]

    @cached_property
    def decode_layout(self) -> DecodeLayout:
        """The decode rows for attention."""
        cut, plan = self.num_decode_rows, self.plan
        return DecodeLayout(
            self.req_to_token,
            tuple(plan.req_pool_indices[:cut]),
            tuple(length + 1 for length in plan.prefix_lens[:cut]),
            self.device,
        )

    @cached_property
    def decode_states(self) -> torch.Tensor:
        """Mamba slots of the decode rows: [rows]."""
        return torch.tensor(self.plan.mamba_indices[: self.num_decode_rows], device=self.device)

    @cached_property
    def prefix_slots(self) -> list[torch.Tensor]:
        """For each prefill row the KV slots of what came before it."""
        cut = self.num_decode_rows
        return [
            self.req_to_token[index, :length].long()
            for index, length in zip(
                self.plan.req_pool_indices[cut:], self.plan.prefix_lens[cut:], strict=True
            )
        ]

    @cached_property
    def prefill_layout(self) -> PrefillLayout:
        """The prefill rows for kernels that carry state."""
        cut, plan = self.num_decode_rows, self.plan
        tracks: dict[int, list[tuple[int, int]]] = {}
        for row, position, slot in plan.track_states:
            tracks.setdefault(row, []).append((position - plan.prefix_lens[row], slot))
        bounds = self.prefill_bounds
        return PrefillLayout(
            tuple(
                PrefillRow(
                    bounds[row - cut],
                    bounds[row - cut + 1],
                    plan.prefix_lens[row],
                    plan.mamba_indices[row],
                    tuple(tracks.get(row, ())),
                )
                for row in range(cut, len(plan.extend_lens))
            ),
            self.device,
        )
