"""A small Llama as safetensors and as GGUF, written by `transformers` and by the `gguf` package."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import load_file

from sglang.srt.models.gguf_file import canonical_name
from support.tiny_models import spread_weights, write_tokenizer

HEADS, KV_HEADS, LAYERS = 4, 2, 3

QUANTS = {
    "F32": gguf.GGMLQuantizationType.F32,
    "F16": gguf.GGMLQuantizationType.F16,
    "Q8_0": gguf.GGMLQuantizationType.Q8_0,
}


def make_llama(folder: Path) -> Path:
    """A checkpoint in Hugging Face's format."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=259, hidden_size=64, intermediate_size=96, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, max_position_embeddings=512,
        rope_theta=500.0, tie_word_embeddings=False, bos_token_id=257, eos_token_id=258,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    spread_weights(model)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_gguf(
    checkpoint: Path, file: Path, quant: str, extra: str | None = None
) -> dict[str, np.ndarray]:
    """The same model as GGUF; returns the values that a reader must find, by checkpoint name.

    extra: a tensor of zeros besides.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(500.0)
    _add_tokenizer(writer, checkpoint)
    weights = load_file(checkpoint / "model.safetensors")
    stored = {}
    for name in _gguf_names():
        theirs = canonical_name(name)[0]
        values = weights[theirs].numpy()
        kind = QUANTS[quant] if values.ndim == 2 else QUANTS["F32"]
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            heads = HEADS if "attn_q" in name else KV_HEADS
            written = gguf.quantize(_permuted(values, heads), kind)
            found = gguf.dequantize(written, kind)
            stored[theirs] = _permuted_back(found, heads)
        else:
            written = gguf.quantize(values, kind)
            stored[theirs] = gguf.dequantize(written, kind)
        writer.add_tensor(name, written, raw_dtype=kind)
    if extra is not None:
        writer.add_tensor(extra, np.zeros(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def _add_tokenizer(writer: gguf.GGUFWriter, checkpoint: Path) -> None:
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    tokens = {**tokenizer["model"]["vocab"]}
    tokens.update({entry["content"]: entry["id"] for entry in tokenizer["added_tokens"]})
    ordered = sorted(tokens, key=tokens.__getitem__)
    special = {entry["content"] for entry in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(ordered)
    writer.add_token_types([3 if token in special else 1 for token in ordered])
    writer.add_token_merges([])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    writer.add_chat_template("{{ messages[0].content }}")


def _gguf_names() -> list[str]:
    parts = ("attn_norm", "ffn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate",
             "ffn_up", "ffn_down")  # fmt: skip
    layers = [f"blk.{layer}.{part}.weight" for layer in range(LAYERS) for part in parts]
    return ["token_embd.weight", "output_norm.weight", "output.weight", *layers]


def _permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows as llama.cpp has them: the two values of a rotated pair next to each other."""
    return np.ascontiguousarray(
        values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
    )


def _permuted_back(values: np.ndarray, heads: int) -> np.ndarray:
    half = values.shape[0] // heads // 2
    rows = values.reshape(heads, half, 2, values.shape[1])
    return np.concatenate([rows[:, :, 0], rows[:, :, 1]], axis=1).reshape(values.shape)
