"""Model stages without a scheduler: a test says which rows run in a step, and sees the logits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from sglang.srt.managers.step_plan import RowSampling, StepPlan, StepResult, pack_ints
from sglang.srt.mem_cache.allocator import OwnerTable
from sglang.srt.mem_cache.layer_specs import AttentionSpec, MambaSpec
from sglang.srt.mem_cache.memory_pool import (
    HybridReqToTokenPool,
    MambaPool,
    MHATokenToKVPool,
)
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.models.config import ModelConfig
from sglang.srt.platform import Platform

NUM_SLOTS = 24
NUM_TOKENS = 4096


@dataclass
class Row:
    """`tokens` of a sequence that continue it; `tracks`: (position, Mamba slot) to save.

    A row of one token runs as a decode step unless `as_prefill`.
    """

    request: int
    tokens: Sequence[int]
    tracks: Sequence[tuple[int, int]] = ()
    as_prefill: bool = False
    input_logprobs: bool = False
    next_input: int = -1


def greedy(request: int, **changes: Any) -> RowSampling:
    """Settings of a greedy request, with changes."""
    fields: dict[str, Any] = {
        "req_pool_idx": request, "temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
        "frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "seed": 0,
        "min_len": 0, "stop_ids": [], "logit_bias": {}, "return_logprob": False,
        "top_logprobs_num": 0, "token_ids_logprob": [], "history": b"", "num_prompt": 0,
    }  # fmt: skip
    return RowSampling(**{**fields, **changes})


@dataclass
class StageChain:
    """Stages of a model with their pools. Requests are numbers from 1 on.

    Request r has request slot r and Mamba slot r; its KV slots are scattered over the pool.
    """

    runners: list[ModelRunner]
    mamba_pools: list[MambaPool]
    lens: dict[int, int] = field(default_factory=dict)
    logits: torch.Tensor | None = None  # of the last step's sampled rows
    _free: list[int] = field(default_factory=list)

    @classmethod
    def load(
        cls, folder: Path, cuts: Sequence[int] = (), ssm_dtype: torch.dtype = torch.float32
    ) -> StageChain:
        """Stages that begin at layer 0 and at each of `cuts`."""
        config = ModelConfig.from_path(str(folder))
        bounds = [0, *cuts, config.num_layers]
        chain = cls([], [])
        for layers in pairwise(bounds):
            runner = ModelRunner(config, layers, Platform("cpu"))
            runner.load("auto", 0)
            chain._add(runner, ssm_dtype)
        chain._free = list(range(1, NUM_TOKENS + 1))
        random.Random(0).shuffle(chain._free)
        last = chain.runners[-1].model
        make_logits = last.logits

        def recorded(hidden: torch.Tensor) -> torch.Tensor:
            chain.logits = make_logits(hidden)
            return chain.logits

        last.logits = recorded
        return chain

    def _add(self, runner: ModelRunner, ssm_dtype: torch.dtype) -> None:
        def specs(kind: type) -> dict[int, Any]:
            return {
                layer: spec
                for layer in range(*runner.layers)
                for spec in runner.config.layer_specs[layer]
                if isinstance(spec, kind)
            }

        owners = OwnerTable()
        mamba = MambaPool(NUM_SLOTS, specs(MambaSpec), runner.dtype, ssm_dtype, "cpu", owners)
        kv = MHATokenToKVPool(NUM_TOKENS, 1, specs(AttentionSpec), runner.dtype, "cpu")
        table = HybridReqToTokenPool(NUM_SLOTS, runner.config.context_len, "cpu", owners, mamba)
        runner.set_pools(table, kv, mamba)
        self.runners.append(runner)
        self.mamba_pools.append(mamba)

    def step(
        self,
        rows: Sequence[Row],
        *,
        sampling: Sequence[RowSampling] | None = None,
        restore: Sequence[tuple[int, int]] = (),
    ) -> StepResult:
        """Run rows together; each samples, greedily unless told. New requests start from zero."""
        decode = [r for r in rows if self._is_decode(r)]
        rows = decode + [r for r in rows if not self._is_decode(r)]
        new = [r.request for r in rows if r.request not in self.lens]
        prefixes = [self.lens.get(r.request, 0) for r in rows]
        counts = [len(r.tokens) for r in rows]
        slots = [self._free.pop() for _ in range(sum(counts))]
        plan = StepPlan(
            seq=0,
            mb_slot=0,
            num_decode_rows=len(decode),
            req_pool_indices=[r.request for r in rows],
            prefix_lens=prefixes,
            extend_lens=counts,
            mamba_indices=[r.request for r in rows],
            sample_rows=list(range(len(rows))),
            input_ids=pack_ints([token for r in rows for token in r.tokens]),
            out_cache_loc=pack_ints(slots),
            zero_states=[request for request in new if request not in dict(restore).values()],
            copy_states=list(restore),
            track_states=[(i, at, slot) for i, r in enumerate(rows) for at, slot in r.tracks],
            sampling=[greedy(r.request) for r in rows] if sampling is None else list(sampling),
            input_logprob_rows=[i for i, r in enumerate(rows) if r.input_logprobs],
            next_input_ids=[r.next_input for r in rows if r.input_logprobs],
        )
        for row, prefix, count in zip(rows, prefixes, counts, strict=True):
            self.lens[row.request] = prefix + count
        out: Any = None
        for runner in self.runners:
            out = runner.execute(plan, out)
        assert isinstance(out, StepResult)
        return out

    def _is_decode(self, row: Row) -> bool:
        return len(row.tokens) == 1 and row.request in self.lens and not row.as_prefill

    def states(self, slot: int) -> list[torch.Tensor]:
        """Everything that a Mamba slot holds, over all stages."""
        return [
            pool_state[slot].clone()
            for pool in self.mamba_pools
            for pool_state in (*pool._conv.values(), *pool._temporal.values())
        ]
