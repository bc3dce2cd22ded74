"""Qwen3.5, text: gated delta nets with a gated attention layer every few layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from sglang.srt.layers.attention.paged import PagedAttention
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import Linear, MergedLinear, Targets, WeightFactory
from sglang.srt.layers.mamba.gated_delta_net import GatedDeltaNet
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.rotary import RotaryEmbedding
from sglang.srt.models.layer_config import qwen3_5_layer_types, rope_settings

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch, PPProxyTensors
    from sglang.srt.models.config import ModelConfig


class GatedAttention:
    """Attention with normalised queries and keys, partial rope and a sigmoid gate on its output."""

    def __init__(
        self,
        config: dict[str, Any],
        layer_id: int,
        factory: WeightFactory,
        rotary: RotaryEmbedding,
    ) -> None:
        self._heads = config["num_attention_heads"]
        self._kv_heads = config["num_key_value_heads"]
        self._dim = config["head_dim"]
        self._rotary = rotary
        hidden, bias = config["hidden_size"], bool(config.get("attention_bias", False))
        self._qkv = MergedLinear(
            hidden,
            [
                ("q_proj", 2 * self._heads * self._dim),
                ("k_proj", self._kv_heads * self._dim),
                ("v_proj", self._kv_heads * self._dim),
            ],
            factory,
            bias,
        )
        self._out = Linear("o_proj", self._heads * self._dim, hidden, factory, bias)
        eps = config["rms_norm_eps"]
        self._q_norm = RMSNorm("q_norm", self._dim, eps, factory, offset=1.0)
        self._k_norm = RMSNorm("k_norm", self._dim, eps, factory, offset=1.0)
        self._attention = PagedAttention(layer_id, self._dim**-0.5, factory.device)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same."""
        q_gate, k, v = self._qkv.split(self._qkv.forward(x))
        q, gate = q_gate.reshape(-1, self._heads, 2 * self._dim).chunk(2, dim=-1)
        k = k.reshape(-1, self._kv_heads, self._dim)
        v = v.reshape(-1, self._kv_heads, self._dim)
        tables = batch.shared(id(self._rotary), lambda: self._rotary.cos_sin(batch.positions))
        q = self._rotary.apply(self._q_norm.forward(q), tables)
        k = self._rotary.apply(self._k_norm.forward(k), tables)
        out = self._attention.forward(q, k, v, batch).mul_(torch.sigmoid(gate))
        return self._out.forward(out.flatten(1))

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        parts = (self._qkv, self._out, self._q_norm, self._k_norm)
        return {name: t for part in parts for name, t in part.targets(prefix).items()}

    def finish_loading(self) -> None:
        """After all weights are in."""
        self._q_norm.finish_loading()
        self._k_norm.finish_loading()


class DecoderLayer:
    """Norm, attention or delta net, norm, MLP, each with its residual."""

    def __init__(
        self,
        config: dict[str, Any],
        layer_id: int,
        factory: WeightFactory,
        rotary: RotaryEmbedding,
    ) -> None:
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self._norm = RMSNorm("input_layernorm", hidden, eps, factory, offset=1.0)
        self._mixer: GatedAttention | GatedDeltaNet
        if qwen3_5_layer_types(config)[layer_id] == "full_attention":
            self._mixer, self._mixer_name = (
                GatedAttention(config, layer_id, factory, rotary),
                "self_attn",
            )
        else:
            self._mixer, self._mixer_name = GatedDeltaNet(config, layer_id, factory), "linear_attn"
        self._post_norm = RMSNorm("post_attention_layernorm", hidden, eps, factory, offset=1.0)
        self._mlp = GatedMLP(hidden, config["intermediate_size"], factory)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same."""
        x = x + self._mixer.forward(self._norm.forward(x), batch)
        return x + self._mlp.forward(self._post_norm.forward(x))

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        return {
            **self._norm.targets(prefix),
            **self._mixer.targets(f"{prefix}{self._mixer_name}."),
            **self._post_norm.targets(prefix),
            **self._mlp.targets(f"{prefix}mlp."),
        }

    def finish_loading(self) -> None:
        """After all weights are in."""
        for part in (self._norm, self._mixer, self._post_norm):
            part.finish_loading()


class Qwen3_5ForCausalLM:
    """Layers [start, end) of the model, with the embedding on the first stage, final norm and LM
    head on the last. Tied embeddings load on both ends."""

    # Tensors of a checkpoint that this class leaves out on purpose: vision tower, draft layers.
    IGNORED_PREFIXES = ("model.visual.", "visual.", "mtp.")

    def __init__(
        self, config: ModelConfig, layers: tuple[int, int], factory: WeightFactory
    ) -> None:
        text = config.text
        self._config = config
        self._range = layers
        self.is_first = layers[0] == 0
        self.is_last = layers[1] == config.num_layers
        rope = rope_settings(text)
        self._rotary = RotaryEmbedding(rope.theta, rope.rotary_dim, factory.device)
        shape = (config.vocab_size, config.hidden_size)
        self._embedding = factory.empty(*shape) if self.is_first else None
        self._layers = [DecoderLayer(text, i, factory, self._rotary) for i in range(*layers)]
        self._norm: RMSNorm | None = None
        self._head: torch.Tensor | None = None
        if self.is_last:
            eps = text["rms_norm_eps"]
            self._norm = RMSNorm("norm", config.hidden_size, eps, factory, offset=1.0)
            shared = config.tie_word_embeddings and self._embedding is not None
            self._head = self._embedding if shared else factory.empty(*shape)

    def forward(self, batch: ForwardBatch, proxy: PPProxyTensors | None) -> torch.Tensor:
        """Hidden states [tokens, hidden] after this stage's layers (before the final norm)."""
        if self.is_first:
            assert self._embedding is not None
            x = F.embedding(batch.input_ids, self._embedding)
        else:
            assert proxy is not None
            x = proxy.tensors["hidden_states"]
        for layer in self._layers:
            x = layer.forward(x, batch)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Last stage: hidden states of some positions [n, hidden] to logits [n, vocab] in fp32."""
        assert self._norm is not None and self._head is not None
        return F.linear(self._norm.forward(hidden), self._head).float()

    def targets(self) -> Targets:
        """Where the checkpoint's tensors go, by the names of `Qwen3_5ForCausalLM`."""
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

    @staticmethod
    def canonical_name(name: str) -> str:
        """The name of `Qwen3_5ForCausalLM` for a tensor of either architecture's checkpoint."""
        return name.replace("model.language_model.", "model.", 1)

    def finish_loading(self) -> None:
        """After all weights are in."""
        for layer in self._layers:
            layer.finish_loading()
        if self._norm is not None:
            self._norm.finish_loading()
