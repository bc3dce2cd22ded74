"""Nemotron-H (arXiv:2504.03624): Mamba-2, attention without positions, MLPs and experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.layers.attention.attention import Attention
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import WeightFactory
from sglang.srt.layers.mamba.mamba2 import Mamba2Mixer, Mamba2Shape, OutputNorm
from sglang.srt.layers.mlp import SquaredReluMLP
from sglang.srt.layers.moe import STACKED, ExpertShape, MoE, Routing, SharedExpert
from sglang.srt.layers.residual import Part, Residual, ResidualBlock
from sglang.srt.models.bamba import attention_options
from sglang.srt.models.causal_lm import CausalLM, Ends
from sglang.srt.models.configs.mamba2 import dt_limit
from sglang.srt.models.configs.nemotron_h import layer_types

if TYPE_CHECKING:
    from sglang.srt.models.config import ModelConfig


def _mamba(text: dict[str, Any]) -> Mamba2Shape:
    return Mamba2Shape(
        text["hidden_size"],
        text["mamba_num_heads"],
        text["mamba_head_dim"],
        text["n_groups"],
        text["ssm_state_size"],
        text["conv_kernel"],
        conv_bias=text["use_conv_bias"],
        proj_bias=text["use_bias"],
        dt_limit=dt_limit(text),
        norm=OutputNorm(text["layer_norm_epsilon"], text["n_groups"]),
    )


def _experts(text: dict[str, Any], factory: WeightFactory) -> MoE:
    hidden, bias = text["hidden_size"], text["mlp_bias"]
    routing = Routing(
        text["n_routed_experts"],
        text["num_experts_per_tok"],
        scoring="sigmoid",
        normalise=text["norm_topk_prob"],
        sum_eps=1e-20,
        scale=float(text["routed_scaling_factor"]),
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
    width = text["moe_shared_expert_intermediate_size"]
    shared = SharedExpert(SquaredReluMLP(hidden, width, factory, bias), "shared_experts")
    return MoE(routing, shape, factory, shared)


class NemotronHForCausalLM(CausalLM):
    """Names in its checkpoints are those of Mamba-2's original implementation."""

    IGNORED_PREFIXES = ("mtp.",)
    RENAMED = (
        ("backbone.embeddings.", "model.embed_tokens."),
        ("backbone.embedding.", "model.embed_tokens."),
        ("backbone.norm_f.", "model.norm."),
        ("backbone.", "model."),
    )
    STACKED_EXPERTS = STACKED

    def __init__(
        self, config: ModelConfig, layers: tuple[int, int], factory: WeightFactory
    ) -> None:
        text, eps, hidden = config.text, config.text["layer_norm_epsilon"], config.hidden_size
        shape, kinds = _mamba(text), layer_types(text)
        options = attention_options(text)

        def part(layer_id: int) -> Part:
            if kinds[layer_id] == "mamba":
                return Mamba2Mixer(shape, layer_id, factory)
            if kinds[layer_id] == "attention":
                return Attention(options, layer_id, factory, None)
            if kinds[layer_id] == "moe":
                return _experts(text, factory)
            return SquaredReluMLP(hidden, text["intermediate_size"], factory, text["mlp_bias"])

        def block(layer_id: int) -> ResidualBlock:
            norm = RMSNorm("norm", hidden, eps, factory)
            return ResidualBlock(Residual(norm, "mixer", part(layer_id)))

        super().__init__(config, layers, factory, block, Ends(eps))
