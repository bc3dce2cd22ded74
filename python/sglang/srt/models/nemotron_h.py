"""Nemotron-H (arXiv:2504.03624): each layer is one thing: Mamba-2, attention, an MLP or experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.layers.attention.attention import Attention, AttentionOptions
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import WeightFactory
from sglang.srt.layers.mamba.mamba2 import Mamba2Mixer, Mamba2Options
from sglang.srt.layers.mlp import ReluSquaredMLP
from sglang.srt.layers.moe import STACKED, ExpertShape, MoE, Routing, SharedExpert
from sglang.srt.layers.residual import Part, Residual, ResidualBlock
from sglang.srt.models.causal_lm import CausalLM, Ends
from sglang.srt.models.configs.mamba2 import dt_limit

if TYPE_CHECKING:
    from sglang.srt.models.config import ModelConfig


def _mamba(text: dict[str, Any], layer_id: int, factory: WeightFactory) -> Mamba2Mixer:
    options = Mamba2Options(
        text["hidden_size"],
        text["mamba_num_heads"],
        text["mamba_head_dim"],
        text["n_groups"],
        text["ssm_state_size"],
        text["conv_kernel"],
        norm_eps=text["layer_norm_epsilon"],
        norm_groups=text["n_groups"],
        conv_bias=text["use_conv_bias"],
        in_bias=text["use_bias"],
        out_bias=text["use_bias"],
        dt_limit=dt_limit(text),
    )
    return Mamba2Mixer(options, layer_id, factory)


def _attention(text: dict[str, Any], layer_id: int, factory: WeightFactory) -> Attention:
    options = AttentionOptions(
        text["hidden_size"],
        text["num_attention_heads"],
        text["num_key_value_heads"],
        text["head_dim"],
    )
    return Attention(options, layer_id, factory, None)


def _experts(text: dict[str, Any], factory: WeightFactory) -> MoE:
    hidden = text["hidden_size"]
    routing = Routing(
        text["n_routed_experts"],
        text["num_experts_per_tok"],
        scoring="sigmoid",
        normalise=text["norm_topk_prob"],
        sum_eps=1e-20,
        scale=text["routed_scaling_factor"],
        bias_name="gate.e_score_correction_bias",
        num_groups=text["n_group"],
        top_groups=text["topk_group"],
    )
    shape = ExpertShape(
        hidden,
        text["moe_intermediate_size"],
        activation="relu_squared",
        in_names=("up_proj",),
        latent_size=text["moe_latent_size"],
    )
    shared = ReluSquaredMLP(hidden, text["moe_shared_expert_intermediate_size"], factory)
    return MoE(routing, shape, factory, SharedExpert(shared, "shared_experts"))


class NemotronHForCausalLM(CausalLM):
    """Attention knows no positions. Published checkpoints call the model "backbone".

    Step sizes have the bounds of `time_step_limit`, as they had in training. (`transformers` 5.12.1
    without its GPU kernels bounds them by `time_step_min` instead, which is a value for
    initialisation.)
    """

    # Draft layers.
    IGNORED_PREFIXES = ("mtp.",)
    RENAMED = (
        ("backbone.embeddings.", "model.embed_tokens."),
        ("backbone.embedding.", "model.embed_tokens."),
        ("backbone.norm_f.", "model.norm."),
        ("backbone.", "model."),
        ("model.embeddings.", "model.embed_tokens."),
        ("model.norm_f.", "model.norm."),
    )
    STACKED_EXPERTS = STACKED

    def __init__(
        self, config: ModelConfig, layers: tuple[int, int], factory: WeightFactory
    ) -> None:
        text, eps, hidden = config.text, config.text["layer_norm_epsilon"], config.hidden_size

        def block(layer_id: int) -> ResidualBlock:
            kind = text["layer_types"][layer_id]
            part: Part
            if kind == "mamba":
                part = _mamba(text, layer_id, factory)
            elif kind == "attention":
                part = _attention(text, layer_id, factory)
            elif kind == "moe":
                part = _experts(text, factory)
            else:
                part = ReluSquaredMLP(hidden, text["intermediate_size"], factory)
            return ResidualBlock(Residual(RMSNorm("norm", hidden, eps, factory), "mixer", part))

        super().__init__(config, layers, factory, block, Ends(eps))
