"""Qwen3.5 through the tests of all families; its own tests go further."""

from support.families import Family
from support.tiny_models import BASE, SHAPES

FAMILY = Family(
    "Qwen3_5ForCausalLM",
    "Qwen3_5TextConfig",
    shapes={"small": BASE, "wide_values": {**BASE, **SHAPES["wide_values"]}},
)
