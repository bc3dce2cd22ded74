"""Executes plans on one stage's layers. No policy: it does what the plan says, in its order."""

from __future__ import annotations

import logging

import torch

from sglang.srt.layers.linear import WeightFactory
from sglang.srt.managers.step_plan import StepPlan, StepResult, TokenResult, unpack_ints
from sglang.srt.mem_cache.memory_pool import MambaPool, MHATokenToKVPool, ReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, PPProxyTensors
from sglang.srt.model_executor.loader import check_load_format, fill_dummy, load_checkpoint
from sglang.srt.model_executor.output_builder import OutputBuilder
from sglang.srt.models.config import ModelConfig
from sglang.srt.models.registry import model_class
from sglang.srt.platform import Platform

logger = logging.getLogger(__name__)


class ModelRunner:
    """One stage: layers [start, end) of a model with their weights, and the pools they use."""

    def __init__(self, config: ModelConfig, layers: tuple[int, int], platform: Platform) -> None:
        self.config = config
        self.layers = layers
        self.platform = platform
        self.device = platform.device
        platform.prepare_process()
        self.dtype = platform.compute_dtype(config.dtype)
        matrix_dtype = platform.matrix_dtype(config.dtype)
        if self.dtype == torch.float32 and config.dtype in ("bfloat16", "float16", "half"):
            stored = str(matrix_dtype).removeprefix("torch.")
            logger.warning(
                "--dtype %s: a CPU stage stores matrices in %s and computes in float32",
                config.dtype,
                stored,
            )
        factory = WeightFactory(self.dtype, self.device, matrix_dtype)
        self.model = model_class(config.architecture)(config, layers, factory)
        self._is_first = layers[0] == 0
        self._is_last = layers[1] == config.num_layers
        self._output = OutputBuilder(config.vocab_size) if self._is_last else None
        self._req_pool: ReqToTokenPool | None = None
        self._kv_pool: MHATokenToKVPool | None = None
        self._mamba_pool: MambaPool | None = None

    @property
    def weight_bytes(self) -> int:
        """Memory of this stage's weights (a tensor used twice counts once)."""
        tensors = {t.data_ptr(): t for t in self.model.targets().values()}
        return sum(t.numel() * t.element_size() for t in tensors.values())

    def load(self, load_format: str, seed: int) -> None:
        """Read this stage's slice ("auto", "safetensors", "gguf"), or make it up ("dummy").

        Raises LoadError when the checkpoint does not fit.
        """
        if load_format == "dummy":
            fill_dummy(self.model, seed)
        else:
            check_load_format(self.config.path, load_format)
            load_checkpoint(self.model, self.config.path, self.config.num_layers, self.layers)

    def set_pools(
        self, req_pool: ReqToTokenPool, kv_pool: MHATokenToKVPool, mamba_pool: MambaPool | None
    ) -> None:
        """Take the pools that plans refer to."""
        self._req_pool, self._kv_pool, self._mamba_pool = req_pool, kv_pool, mamba_pool

    @torch.inference_mode()
    def execute(self, plan: StepPlan, proxy: PPProxyTensors | None) -> PPProxyTensors | StepResult:
        """Run a plan. The last stage returns tokens, the others their activations.

        The order of effects is that of `StepPlan`: page tables, fresh and restored states, forward
        with checkpoints, sampling.
        """
        self._update_tables(plan)
        if self._mamba_pool is not None:
            if plan.zero_states:
                self._mamba_pool.zero(plan.zero_states)
            if plan.copy_states:
                self._mamba_pool.copy(plan.copy_states)
        batch = self._batch(plan)
        batch.write_page_table()
        hidden = self.model.forward(batch, self._on_device(proxy))
        self._track_decode(plan)
        if self._output is None:
            return PPProxyTensors({"hidden_states": hidden})
        self._output.set_rows(plan)
        return self._answer(plan, batch, hidden)

    def synchronize(self) -> None:
        """Wait until the device has done all that was asked of it."""
        self.platform.synchronize()

    # -- parts of a step -------------------------------------------------------------------------

    def _batch(self, plan: StepPlan) -> ForwardBatch:
        assert self._req_pool is not None and self._kv_pool is not None
        return ForwardBatch.build(
            plan, self._req_pool.req_to_token, self._kv_pool, self._mamba_pool, self.device
        )

    def _update_tables(self, plan: StepPlan) -> None:
        assert self._req_pool is not None
        table = self._req_pool.req_to_token
        for slot, start, packed in plan.table_updates:
            slots = torch.from_numpy(unpack_ints(packed).copy())
            table[slot, start : start + len(slots)] = slots.to(self.device)

    def _on_device(self, proxy: PPProxyTensors | None) -> PPProxyTensors | None:
        if proxy is None or self.platform.kind == "cpu":
            return proxy
        return PPProxyTensors({name: t.to(self.device) for name, t in proxy.tensors.items()})

    def _track_decode(self, plan: StepPlan) -> None:
        """Checkpoints of decode rows: the state after the step is the one to keep."""
        if self._mamba_pool is None:
            return
        pairs = [
            (plan.mamba_indices[row], slot)
            for row, _, slot in plan.track_states
            if row < plan.num_decode_rows
        ]
        if pairs:
            self._mamba_pool.copy(pairs)

    def _answer(self, plan: StepPlan, batch: ForwardBatch, hidden: torch.Tensor) -> StepResult:
        assert self._output is not None
        bounds = batch.bounds
        tokens: list[TokenResult] = []
        if plan.sample_rows:
            last = torch.tensor([bounds[row + 1] - 1 for row in plan.sample_rows])
            tokens = self._output.sample(plan, self.model.logits(hidden[last.to(hidden.device)]))

        def logits_of(first: int, last: int) -> torch.Tensor:
            logits: torch.Tensor = self.model.logits(hidden[first:last])
            return logits

        inputs = [
            self._output.input_logprobs(plan, row, following, logits_of)
            for row, following in zip(plan.input_logprob_rows, plan.next_input_ids, strict=True)
        ]
        return StepResult(plan.seq, tokens, input_logprobs=inputs)
