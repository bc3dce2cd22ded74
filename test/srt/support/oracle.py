"""Greedy decoding by `transformers`, as the judge of ours."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import transformers

from sglang.srt.models.config import ModelConfig

# Two logits closer than this may swap places with the order of a sum; either token is right.
MARGIN = 1e-4


def _rotate_half(model: Any) -> None:
    """Bamba rotates half of each head, and `transformers` writes so into its configs; but version
    5.12.1 makes frequencies for the whole head."""
    theta = model.config.rope_parameters["rope_theta"]
    dim = model.config.hidden_size // model.config.num_attention_heads // 2
    steps = torch.arange(0, dim, 2, dtype=torch.int64).float()
    model.model.rotary_emb.inv_freq = 1.0 / (theta ** (steps / dim))


def _nemotron_as_published(model: Any) -> None:
    """On GPUs `transformers` 5.12.1 bounds Nemotron-H's step sizes by `time_step_limit`, as the
    published model does; on CPUs it takes `time_step_min`, a setting of initialisation. There it
    also sums the states of earlier chunks over the wrong dimension: one chunk avoids that (of 512 tokens here; memory grows with its square)."""
    for module in model.modules():
        if hasattr(module, "time_step_limit"):
            module.time_step_min = module.time_step_limit[0]
            module.chunk_size = 512


# Where `transformers` computes something else than the published model.
CORRECTIONS = {
    "BambaForCausalLM": _rotate_half,
    "NemotronHForCausalLM": _nemotron_as_published,
}


@lru_cache(maxsize=4)
def oracle_model(folder: Path) -> Any:
    """The `transformers` model of a checkpoint, in fp32."""
    cls: Any = getattr(transformers, ModelConfig.from_path(str(folder)).architecture)
    model = cls.from_pretrained(folder, dtype=torch.float32).eval()
    correct = CORRECTIONS.get(type(model).__name__)
    if correct is not None:
        correct(model)
    return model


@torch.no_grad()
def oracle_logits(folder: Path, ids: list[int]) -> torch.Tensor:
    """Logits after each token of a sequence in one pass without caches: [len(ids), vocab]."""
    logits: torch.Tensor = oracle_model(folder)(torch.tensor([ids]), use_cache=False).logits[0]
    return logits.float()


def check_greedy(folder: Path, prompt: list[int], output: list[int]) -> None:
    """Each output token is the best one after all before it, or as good as the best."""
    logits = oracle_logits(folder, prompt + output[:-1])[len(prompt) - 1 :]
    for step, (row, token) in enumerate(zip(logits, output, strict=True)):
        best = int(row.argmax())
        assert float(row[best] - row[token]) < MARGIN, (
            f"token {step} after {len(prompt)} of prompt: {token}, transformers says {best} "
            f"by {float(row[best] - row[token]):.3g}"
        )
