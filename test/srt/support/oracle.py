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


@lru_cache(maxsize=4)
def oracle_model(folder: Path) -> Any:
    """The `transformers` model of a checkpoint, in fp32."""
    cls: Any = getattr(transformers, ModelConfig.from_path(str(folder)).architecture)
    return cls.from_pretrained(folder, dtype=torch.float32).eval()


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
