"""Dense configs with a window are refused, also those that have one without saying so."""

from __future__ import annotations

from typing import Any

import pytest

from sglang.srt.models.layer_config import ARCHITECTURES

CONFIG = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
          "num_attention_heads": 4, "vocab_size": 300}  # fmt: skip


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("MistralForCausalLM", {}),
        ("MistralForCausalLM", {"sliding_window": 4096}),
        ("Qwen2ForCausalLM", {"use_sliding_window": True}),
        ("Qwen3ForCausalLM", {"layer_types": ["full_attention", "sliding_attention"]}),
    ],
)
def test_a_window_is_refused(architecture: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="sliding"):
        ARCHITECTURES[architecture].complete({**CONFIG, **changes})


def test_no_window_is_taken() -> None:
    full = {"sliding_window": None, "layer_types": ["full_attention"] * 2}
    for name in ("MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"):
        assert ARCHITECTURES[name].complete({**CONFIG, **full})
