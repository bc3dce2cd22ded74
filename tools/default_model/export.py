"""Write the trained checkpoint as a Hugging Face model folder."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from train import make_config
from train_tokenizer import CHAT_TEMPLATE, SPECIAL

# Fields that transformers writes for every model and that say nothing about this one.
UNUSED = (
    "_name_or_path",
    "bos_token_id",
    "transformers_version",
    "use_cache",
    "return_dict",
    "output_hidden_states",
    "output_attentions",
    "chunk_size_feed_forward",
    "is_encoder_decoder",
    "id2label",
    "label2id",
    "problem_type",
)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def model_config(vocab: int, dtype: str) -> dict[str, Any]:
    """The ``config.json`` of the model."""
    config = make_config(vocab).to_dict()
    for name in UNUSED:
        config.pop(name, None)
    config |= {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "dtype": dtype,
        "full_attention_interval": 4,
        "use_cache": True,
    }
    return config


def tokenizer_config() -> dict[str, Any]:
    """The ``tokenizer_config.json`` of the model."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 32768,
        "bos_token": None,
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[0],
        "unk_token": None,
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "additional_special_tokens": SPECIAL[1:],
        "chat_template": CHAT_TEMPLATE,
    }


def main() -> None:
    """Command line entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("build/default_model"))
    parser.add_argument("--out", type=Path, default=Path("python/sglang/assets/tiny-hybrid"))
    parser.add_argument("--dtype", choices=["bfloat16", "float16"], default="bfloat16")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    saved = torch.load(args.data / "checkpoint.pt", weights_only=False, map_location="cpu")
    dtype = getattr(torch, args.dtype)
    tensors = {
        name: value.to(dtype).contiguous()
        for name, value in saved["model"].items()
        if name != "lm_head.weight"
    }
    weights = args.out / "model.safetensors"
    save_file(tensors, weights, metadata={"format": "pt"})
    weights.chmod(0o644)
    vocab = tensors["model.embed_tokens.weight"].shape[0]
    _write_json(args.out / "config.json", model_config(vocab, args.dtype))
    _write_json(args.out / "tokenizer_config.json", tokenizer_config())
    _write_json(
        args.out / "generation_config.json",
        {"do_sample": False, "eos_token_id": [2, 0], "pad_token_id": 0},
    )
    shutil.copyfile(args.data / "tokenizer.json", args.out / "tokenizer.json")
    step, seconds, tokens = saved["progress"][:3]
    count = sum(value.numel() for value in tensors.values())
    print(f"{count} parameters, step {step}, {tokens} tokens, {seconds / 60:.1f} minutes")


if __name__ == "__main__":
    main()
