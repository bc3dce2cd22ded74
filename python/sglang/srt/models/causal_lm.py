"""The frame of a causal language model on one stage: both ends, and the layers between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F

from sglang.srt.kernels.registry import get_op
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import Targets, WeightFactory
from sglang.srt.layers.moe import unpack_experts

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch, PPProxyTensors
    from sglang.srt.models.config import ModelConfig


class Block(Protocol):
    """One layer of the model."""

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same."""

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""

    def finish_loading(self) -> None:
        """After all weights are in."""


@dataclass(frozen=True)
class Ends:
    """What families do differently at the two ends.

    embedding_scale multiplies embeddings, logits_scale the logits (muP multipliers). norm_eps is
    that of the final norm.
    """

    norm_eps: float
    embedding_scale: float = 1.0
    logits_scale: float = 1.0


class CausalLM:
    """Layers [start, end) of a model, with the embedding on the first stage, final norm and LM
    head on the last. Tied embeddings load on both ends.

    A family's class makes its blocks, and says how the names in its checkpoints differ from
    `model.embed_tokens`, `model.layers.N`, `model.norm`, `lm_head`.
    """

    # Tensors of a checkpoint that are left out on purpose, by the beginning of their names.
    IGNORED_PREFIXES: tuple[str, ...] = ()
    # Beginnings of names in checkpoints, and what they are called here; the first match counts.
    RENAMED: tuple[tuple[str, str], ...] = ()
    # Endings of tensors that hold all experts of a layer, and what they stack of each expert
    # (`layers/moe.py`); a checkpoint may have these or one tensor an expert.
    STACKED_EXPERTS: Mapping[str, tuple[str, ...]] = {}
    # Norm weights are stored minus this (1.0 where they are stored around zero).
    NORM_OFFSET = 0.0

    def __init__(
        self,
        config: ModelConfig,
        layers: tuple[int, int],
        factory: WeightFactory,
        make_block: Callable[[int], Block],
        ends: Ends,
    ) -> None:
        self._config = config
        self._range = layers
        self._ends = ends
        self._dtype = factory.dtype
        self.is_first = layers[0] == 0
        self.is_last = layers[1] == config.num_layers
        shape = (config.vocab_size, config.hidden_size)
        self._embedding = factory.matrix(*shape) if self.is_first else None
        self._layers = [make_block(layer_id) for layer_id in range(*layers)]
        self._linear = get_op("linear", factory.device)
        self._norm: RMSNorm | None = None
        self._head: torch.Tensor | None = None
        if self.is_last:
            self._norm = RMSNorm(
                "norm", config.hidden_size, ends.norm_eps, factory, self.NORM_OFFSET
            )
            shared = config.tie_word_embeddings and self._embedding is not None
            self._head = self._embedding if shared else factory.matrix(*shape)

    def forward(self, batch: ForwardBatch, proxy: PPProxyTensors | None) -> torch.Tensor:
        """Hidden states [tokens, hidden] after this stage's layers (before the final norm)."""
        if self.is_first:
            assert self._embedding is not None
            x = F.embedding(batch.input_ids, self._embedding).to(self._dtype)
            if self._ends.embedding_scale != 1.0:
                x = x * self._ends.embedding_scale
        else:
            assert proxy is not None
            x = proxy.tensors["hidden_states"]
        for layer in self._layers:
            x = layer.forward(x, batch)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Last stage: hidden states of some positions [n, hidden] to logits [n, vocab] in fp32."""
        assert self._norm is not None and self._head is not None
        found: torch.Tensor = self._linear(self._norm.forward(hidden), self._head, None).float()
        return found if self._ends.logits_scale == 1.0 else found * self._ends.logits_scale

    def targets(self) -> Targets:
        """Where the checkpoint's tensors go, by canonical name."""
        found: Targets = {}
        if self._embedding is not None:
            found["model.embed_tokens.weight"] = self._embedding
        for layer_id, layer in zip(range(*self._range), self._layers, strict=True):
            found.update(layer.targets(f"model.layers.{layer_id}."))
        if self._norm is not None and self._head is not None:
            found.update(self._norm.targets("model."))
            if not self._config.tie_word_embeddings:
                found["lm_head.weight"] = self._head
            elif self._embedding is None:
                found["model.embed_tokens.weight"] = self._head
        return found

    @classmethod
    def canonical_name(cls, name: str) -> str:
        """What a checkpoint's tensor is called here."""
        for theirs, ours in cls.RENAMED:
            if name.startswith(theirs):
                return ours + name.removeprefix(theirs)
        return name

    def unpack(self, name: str, value: torch.Tensor) -> Targets:
        """The targets' values in a checkpoint's tensor that is no target itself."""
        return unpack_experts(name, value, self.STACKED_EXPERTS)

    def finish_loading(self) -> None:
        """After all weights are in."""
        for layer in self._layers:
            layer.finish_loading()
        if self._norm is not None:
            self._norm.finish_loading()
