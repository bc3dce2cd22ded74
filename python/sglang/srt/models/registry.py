"""Architectures by the name in config.json, imported when first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from sglang.srt.models.layer_config import ARCHITECTURES

_CLASSES: dict[str, tuple[str, str]] = {
    "Qwen3_5ForCausalLM": ("qwen3_5", "Qwen3_5ForCausalLM"),
    "Qwen3_5ForConditionalGeneration": ("qwen3_5", "Qwen3_5ForCausalLM"),
}
assert _CLASSES.keys() == ARCHITECTURES.keys(), "each architecture needs its memory declared"


def model_class(architecture: str) -> Any:
    """The class that executes an architecture. Raises KeyError on an unknown one."""
    module, name = _CLASSES[architecture]
    return getattr(import_module(f"sglang.srt.models.{module}"), name)
