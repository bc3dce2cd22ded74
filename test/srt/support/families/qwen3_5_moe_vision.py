"""Qwen3.5 with experts beside a vision tower, whose weights are left out."""

from support.families import Family
from support.families.qwen3_5_moe import EXPERTS, FEW, SMALL
from support.tiny_models import SHAPES

FAMILY = Family(
    "Qwen3_5MoeForConditionalGeneration",
    "Qwen3_5MoeConfig",
    common={
        "vision_config": {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2,
                          "out_hidden_size": 64, "num_position_embeddings": 16, "patch_size": 16},
        "image_token_id": 290,
        "video_token_id": 291,
        "vision_start_token_id": 292,
        "vision_end_token_id": 293,
    },
    shapes={
        "tied": {"text_config": {**SMALL, **EXPERTS}, "tie_word_embeddings": True},
        "untied": {"text_config": {**SMALL, **SHAPES["wide_values"], **FEW,
                                   "tie_word_embeddings": False}},
    },
)  # fmt: skip
