"""What a class does not compute is refused when its config is read, by field and value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang.srt.models.config import ModelConfig, ModelConfigError

PUBLISHED = Path(__file__).parents[2] / "support" / "published"

# A published config, what is changed in it, and what the message says.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("qwen3-next-80b-a3b", {"decoder_sparse_step": 0}, "decoder_sparse_step must be"),
    ("qwen3-next-80b-a3b", {"num_experts_per_tok": 513}, "513 is more than num_experts 512"),
    ("qwen3-next-80b-a3b", {"moe_intermediate_size": None}, "lacks moe_intermediate_size"),
    ("qwen3-next-80b-a3b", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ("qwen3-30b-a3b", {"use_sliding_window": True}, "use_sliding_window True"),
    ("qwen3-30b-a3b", {"num_experts": None}, "num_experts must be positive"),
    ("lfm2-350m", {"layer_types": ["mamba"] * 16}, "layer_types: 'mamba'"),
    ("lfm2-350m", {"tie_embedding": False}, "tie_embedding false"),
    ("lfm2-350m", {"block_ff_dim": None}, "lacks intermediate_size"),
    ("lfm2-8b-a1b", {"num_experts": 3}, "num_experts_per_tok 4 is more"),
    ("jamba-v0.1", {"mamba_inner_layernorms": False}, "mamba_inner_layernorms False"),
    ("jamba-v0.1", {"attn_layer_offset": 8}, "attn_layer_offset 8"),
    ("jamba-v0.1", {"num_key_value_heads": 5}, "num_attention_heads 32 is not a multiple"),
    ("olmo-hybrid-7b", {"linear_num_key_heads": 4}, "linear_num_value_heads 30 is not"),
    ("olmo-hybrid-7b", {"rope_scaling": {"rope_type": "none"}}, "rope_type 'none'"),
    ("mamba2-130m", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ("mamba2-130m", {"n_groups": 5}, "num_heads 24 is not a multiple of n_groups 5"),
    ("mamba2-130m", {"expand": 3}, "num_heads 24 of head_dim 64 are not expand 3"),
    ("mamba2-130m", {"time_step_limit": [0.1]}, "time_step_limit must be"),
    ("bamba-9b-v1", {"attn_layer_indices": [32]}, "there is no layer 32"),
    ("bamba-9b-v1", {"attn_rotary_emb": 129}, "attn_rotary_emb 129"),
    ("bamba-9b-v1", {"mamba_d_head": 32}, "mamba_n_heads 128 of mamba_d_head 32"),
    ("bamba-9b-v1", {"mlp_bias": True}, "mlp_bias True"),
    ("granite-4.0-h-tiny", {"num_experts_per_tok": 65}, "num_experts_per_tok 65"),
    ("granite-4.0-h-tiny", {"intermediate_size": None}, "lacks intermediate_size"),
    ("granite-4.0-h-tiny", {"position_embedding_type": "alibi"}, "'alibi'"),
    ("falcon-h1-0.5b", {"ssm_multipliers": [1.0]}, "ssm_multipliers must be 5 numbers"),
    ("falcon-h1-0.5b", {"mamba_n_groups": 5}, "mamba_n_heads 24 is not a multiple"),
    ("nemotron-h-8b", {"hybrid_override_pattern": "M-X"}, "layer_types: 'X'"),
    ("nemotron-h-8b", {"hybrid_override_pattern": "M-*"}, "layer_types names 3 layers"),
    ("nemotron-h-8b", {"hybrid_override_pattern": ""}, "lacks hybrid_override_pattern"),
    ("nemotron-h-8b", {"intermediate_size": None}, "lacks intermediate_size"),
    ("nemotron-h-8b", {"mlp_hidden_act": "silu"}, "mlp_hidden_act 'silu'"),
    ("nemotron-3-nano-30b-a3b", {"n_routed_experts": 0}, "n_routed_experts must be"),
    ("nemotron-3-nano-30b-a3b", {"topk_group": 2}, "topk_group 2 of n_group 1"),
    ("nemotron-3-nano-30b-a3b", {"num_experts_per_tok": 129}, "129 of 128 experts"),
]


@pytest.mark.parametrize(("name", "change", "message"), REFUSED)
def test_a_value_that_is_not_computed_is_refused(
    name: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = json.loads((PUBLISHED / f"{name}.json").read_text())["config"]
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ModelConfigError, match=message):
        ModelConfig.from_path(str(tmp_path))


def test_an_architecture_that_is_known_but_not_served_is_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Zamba2ForCausalLM"]}))
    with pytest.raises(ModelConfigError, match=r"Zamba2ForCausalLM is not .* one attention block"):
        ModelConfig.from_path(str(tmp_path))
