"""What each stage of a model holds, from its config alone: weights, KV a token, states a request.

    python tools/model_memory.py MODEL [--pp-size 2] [--dtype bfloat16]

The layers are shared out as the server does it; no memory is taken for weights.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

from sglang.srt.distributed.layer_split import split_layers  # noqa: E402
from sglang.srt.layers.linear import WeightFactory  # noqa: E402
from sglang.srt.mem_cache.sizing import stage_cost  # noqa: E402
from sglang.srt.model_executor.layer_cost import estimate_layer_costs  # noqa: E402
from sglang.srt.models.config import ModelConfig  # noqa: E402
from sglang.srt.models.registry import model_class  # noqa: E402

STATE_BYTES = 4  # a value of a recurrent state, `--mamba-ssm-dtype float32`


def rows(model: ModelConfig, pp_size: int, dtype: torch.dtype) -> list[tuple[str, int, int, int]]:
    """(layers, weight bytes, KV bytes a token, state bytes a request) of each stage."""
    costs = estimate_layer_costs(model)
    found = []
    for start, end in split_layers(costs.layers, pp_size, costs.head):
        factory = WeightFactory(dtype, "meta")
        stage = model_class(model.architecture)(model, (start, end), factory)
        weights = sum(t.numel() * t.element_size() for t in stage.targets().values())
        size = dtype.itemsize
        cost = stage_cost(model.layer_specs[start:end], size, size, STATE_BYTES)
        found.append((f"{start}..{end - 1}", weights, cost.bytes_per_token, cost.bytes_per_state))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--pp-size", type=int, default=1)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    arguments = parser.parse_args()
    model = ModelConfig.from_path(arguments.model)
    print("stage  layers      weights, MiB  KV bytes a token  state bytes a request")
    table = rows(model, arguments.pp_size, getattr(torch, arguments.dtype))
    for rank, (layers, weights, kv, state) in enumerate(table):
        print(f"{rank:5}  {layers:9} {weights / 2**20:14,.1f} {kv:17,} {state:22,}")


if __name__ == "__main__":
    main()
