"""Qwen3.5 with experts."""

from support.families import Family
from support.tiny_models import BASE, SHAPES

EXPERTS = {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 40, "num_experts": 8,
           "num_experts_per_tok": 3}  # fmt: skip
FEW = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 16, "num_experts": 3,
       "num_experts_per_tok": 1}  # fmt: skip
SMALL = {name: value for name, value in BASE.items() if name != "intermediate_size"}

FAMILY = Family(
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeTextConfig",
    shapes={
        "small": {**SMALL, **EXPERTS},
        "wide_values": {**SMALL, **SHAPES["wide_values"], **FEW},
    },
)
