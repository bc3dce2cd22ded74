"""Stretched rotary embeddings have the frequencies that `transformers` gives them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from sglang.srt.layers.rotary import amplitude, frequencies
from sglang.srt.models.rope_config import rope_settings

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip
YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("linear", {"factor": 2.5}),
        ("llama3", LLAMA3),
        ("yarn", YARN),
        ("yarn", {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 0.9}),
        ("yarn", {**YARN, "mscale": 0.7, "mscale_all_dim": 1.1}),
        ("yarn", {**YARN, "truncate": False}),
    ],
    ids=str,
)
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_frequencies(kind: str, parameters: dict[str, Any], theta: float) -> None:
    rope = {"rope_type": kind, "rope_theta": theta, **parameters}
    config = transformers.LlamaConfig(
        hidden_size=512, num_attention_heads=4, head_dim=128, max_position_embeddings=131072,
        rope_parameters=dict(rope),
    )  # fmt: skip
    expected, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    ours = rope_settings({"head_dim": 128, "rope_parameters": rope})
    torch.testing.assert_close(frequencies(ours), expected, rtol=1e-6, atol=1e-9)
    assert amplitude(ours) == pytest.approx(factor)
