"""Random-weight checkpoints in the Hugging Face format, made by `transformers` itself.

python test/srt/support/tiny_models.py OUT --shape small
"""

from __future__ import annotations

import argparse
import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.qwen3_5 import (
    Qwen3_5Config,
    Qwen3_5ForCausalLM,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5TextConfig,
)

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

BASE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "eos_token_id": 258,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}

# What each shape is there for.
SHAPES: dict[str, dict[str, Any]] = {
    "small": {},
    "untied": {"tie_word_embeddings": False, "hidden_size": 48, "num_attention_heads": 3,
               "num_key_value_heads": 1},
    "wide_values": {"linear_num_value_heads": 6, "linear_value_head_dim": 24,
                    "linear_key_head_dim": 8, "num_hidden_layers": 6},
    "deep": {"num_hidden_layers": 8, "hidden_size": 32, "head_dim": 16},
    "ten_layers": {"num_hidden_layers": 10, "hidden_size": 32, "head_dim": 16},
    "attention_only": {"layer_types": ["full_attention"] * 4},
    "linear_only": {"layer_types": ["linear_attention"] * 4},
}  # fmt: skip


def make_model(
    folder: Path,
    shape: str = "small",
    *,
    dtype: torch.dtype = torch.float32,
    multimodal: bool = False,
    max_shard_size: str = "5GB",
    seed: int = 0,
) -> Path:
    """Write a checkpoint; weights are larger than usual, so that greedy tokens are well apart."""
    text = {**BASE, **SHAPES[shape]}
    torch.manual_seed(seed)
    model: Any
    if multimodal:
        vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2,
                  "out_hidden_size": text["hidden_size"], "num_position_embeddings": 16,
                  "patch_size": 16}  # fmt: skip
        tied = text["tie_word_embeddings"]
        model = Qwen3_5ForConditionalGeneration(
            Qwen3_5Config(
                text_config=text, vision_config=vision, tie_word_embeddings=tied,
                image_token_id=290, video_token_id=291, vision_start_token_id=292,
                vision_end_token_id=293,
            )
        )  # fmt: skip
    else:
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**text))
    spread_weights(model)
    model.to(dtype).save_pretrained(folder, max_shard_size=max_shard_size)
    config = json.loads((folder / "config.json").read_text())
    (config.get("text_config") or config)["full_attention_interval"] = 4
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_tokenizer(folder)
    return folder


@torch.no_grad()
def spread_weights(model: torch.nn.Module) -> None:
    """Random weights large enough that greedy tokens are well apart."""
    for name, weight in model.named_parameters():
        if "A_log" not in name and "dt_bias" not in name and "visual" not in name:
            weight.add_(torch.randn_like(weight) * 0.08)


def shared_folder(name: str) -> Path:
    """A folder for a checkpoint that lives as long as the test run."""
    root = Path(tempfile.mkdtemp(prefix="tiny-model-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root / name


@cache
def shared_model(shape: str = "small", **options: Any) -> Path:
    """A checkpoint that all tests of a run share and none changes; options of `make_model`."""
    return make_model(shared_folder(shape), shape, **options)


def write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer of 260 tokens with a ChatML template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    fast.save_pretrained(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="small")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--multimodal", action="store_true", help="with a vision tower beside it")
    parser.add_argument("--max-shard-size", default="5GB")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    make_model(
        arguments.out,
        arguments.shape,
        dtype=getattr(torch, arguments.dtype),
        multimodal=arguments.multimodal,
        max_shard_size=arguments.max_shard_size,
        seed=arguments.seed,
    )
