"""Bamba rotates half of each head, as its configs say and `transformers` 5.12.1 does not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from support.families import family_model
from support.oracle import oracle_model
from support.stage_chain import Row, StageChain


def test_half_of_a_head_is_rotated(tmp_path: Path) -> None:
    """Without `attn_rotary_emb`; the oracle is given the frequencies of half a head."""
    folder = tmp_path / "bamba"
    shutil.copytree(family_model("bamba", "groups"), folder)
    config = json.loads((folder / "config.json").read_text())
    config.pop("attn_rotary_emb", None)
    config.pop("partial_rotary_factor", None)
    config["rope_parameters"].pop("partial_rotary_factor", None)
    (folder / "config.json").write_text(json.dumps(config))
    model, theta = oracle_model(folder), config["rope_parameters"]["rope_theta"]
    half = config["hidden_size"] // config["num_attention_heads"] // 2
    steps = torch.arange(0, half, 2, dtype=torch.int64).float()
    model.model.rotary_emb.inv_freq = 1.0 / (theta ** (steps / half))
    ids = [(7 * i) % 250 for i in range(130)]
    chain = StageChain.load(folder, (2,))
    for start, end in ((0, 77), (77, 129), (129, 130)):
        chain.step([Row(1, ids[start:end])])
    with torch.no_grad():
        wanted = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
    assert chain.logits is not None
    torch.testing.assert_close(chain.logits[0], wanted, rtol=1e-4, atol=1e-4)
