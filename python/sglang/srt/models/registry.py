"""The class that computes an architecture, imported when first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from sglang.srt.models.layer_config import ARCHITECTURES


def model_class(architecture: str) -> Any:
    """The class that executes an architecture. Raises KeyError on an unknown one."""
    module, _, name = ARCHITECTURES[architecture].model.partition(".")
    return getattr(import_module(f"sglang.srt.models.{module}"), name)
