"""Llama (arXiv:2407.21783) and the dense families in its shape: Mistral, Qwen2, Qwen3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.layers.attention.attention import Attention, AttentionOptions
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import WeightFactory
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.residual import Residual, ResidualBlock
from sglang.srt.layers.rotary import RotaryEmbedding
from sglang.srt.models.causal_lm import CausalLM, Ends
from sglang.srt.models.rope_config import rope_settings

if TYPE_CHECKING:
    from sglang.srt.models.config import ModelConfig


class LlamaForCausalLM(CausalLM):
    """Attention with rope, then a gated MLP. Also Mistral."""

    # Frequencies that old checkpoints hold as tensors.
    IGNORED_PREFIXES = ("model.rotary_emb.",)
    # Where the families differ: biases of q, k, v and of the output (None: as the config says),
    # and norms on queries and keys.
    QKV_BIAS: bool | None = None
    OUT_BIAS: bool | None = None
    QK_NORM = False

    def __init__(
        self, config: ModelConfig, layers: tuple[int, int], factory: WeightFactory
    ) -> None:
        text, eps, hidden = config.text, config.text["rms_norm_eps"], config.hidden_size
        bias = bool(text["attention_bias"])
        options = AttentionOptions(
            hidden,
            text["num_attention_heads"],
            text["num_key_value_heads"],
            text["head_dim"],
            qkv_bias=bias if self.QKV_BIAS is None else self.QKV_BIAS,
            out_bias=bias if self.OUT_BIAS is None else self.OUT_BIAS,
            qk_norm_eps=eps if self.QK_NORM else None,
        )
        rotary = RotaryEmbedding(rope_settings(text), factory.device)

        def block(layer_id: int) -> ResidualBlock:
            attention = Attention(options, layer_id, factory, rotary)
            mlp = GatedMLP(hidden, text["intermediate_size"], factory, bias=text["mlp_bias"])
            post_norm = RMSNorm("post_attention_layernorm", hidden, eps, factory)
            return ResidualBlock(
                Residual(RMSNorm("input_layernorm", hidden, eps, factory), "self_attn", attention),
                Residual(post_norm, "mlp", mlp),
            )

        super().__init__(config, layers, factory, block, Ends(eps))


class Qwen2ForCausalLM(LlamaForCausalLM):
    """Queries, keys and values with bias, always; the output without."""

    QKV_BIAS = True
    OUT_BIAS = False


class Qwen3ForCausalLM(LlamaForCausalLM):
    """Norms on queries and keys."""

    QK_NORM = True
