"""A model's config.json, read without torch or transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang.srt.mem_cache.layer_specs import LayerSpecs
from sglang.srt.models.gguf_file import GgufError, as_folder, packaged_file
from sglang.srt.models.layer_config import ARCHITECTURES, REFUSED

EMBEDDED_MODELS = Path(__file__).resolve().parents[2] / "assets"


class ModelConfigError(ValueError):
    """The model folder cannot be served; one line that says why."""


@dataclass(frozen=True)
class ModelConfig:
    """What the runtime needs to know of a model before its weights are read.

    `text` is the config of the language model (unwrapped from a multimodal one); `layer_specs`
    says what each layer remembers; `context_len` is in tokens.
    """

    path: Path
    architecture: str
    text: dict[str, Any]
    layer_specs: list[LayerSpecs]
    context_len: int
    vocab_size: int
    eos_token_ids: list[int]
    tie_word_embeddings: bool
    dtype: str

    @classmethod
    def from_path(
        cls, path: str, context_length: int | None = None, dtype: str = "auto"
    ) -> ModelConfig:
        """Read a local folder, an embedded model's name, or a hub name.

        Raises ModelConfigError (a ValueError): no such model, no config.json, unsupported
        architecture, missing field, or a context length that the model does not have.
        """
        folder = resolve_model_path(path)
        config = _read_json(folder / "config.json", required=True)
        architecture = _architecture(config, folder)
        try:
            text = ARCHITECTURES[architecture].complete(_text_config(config))
        except ValueError as error:
            raise ModelConfigError(f"{folder}/config.json: {error}") from error
        specs = ARCHITECTURES[architecture].layer_specs(text)
        return cls(
            path=folder,
            architecture=architecture,
            text=text,
            layer_specs=specs,
            context_len=_context_len(text, context_length),
            vocab_size=text["vocab_size"],
            eos_token_ids=_eos_ids(config, text, folder),
            tie_word_embeddings=bool(
                config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
            ),
            dtype=dtype,
        )

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return int(self.text["hidden_size"])

    @property
    def num_layers(self) -> int:
        """Layers of the whole model."""
        return len(self.layer_specs)


def resolve_model_path(path: str) -> Path:
    """The folder of a model: as given, embedded in the package, or from the hub.

    A GGUF file, and a folder with nothing but one, become a folder in the user's cache. Raises
    ModelConfigError in one line when there is no such model.
    """
    try:
        file = _gguf_file(path)
        if file is not None:
            return as_folder(file)
    except GgufError as error:
        raise ModelConfigError(str(error)) from error
    if Path(path).is_dir():
        return Path(path)
    if (EMBEDDED_MODELS / path).is_dir():
        return EMBEDDED_MODELS / path
    if path.startswith((".", "/", "~")) or path.count("/") != 1:
        names = ", ".join(sorted(p.name for p in EMBEDDED_MODELS.glob("*") if p.is_dir()))
        raise ModelConfigError(
            f"--model-path {path}: no such folder, and not an embedded model ({names or 'none'})"
        )
    return _download(path)


def _gguf_file(path: str) -> Path | None:
    packaged = packaged_file(path)
    if packaged is not None:
        return packaged
    if path.endswith(".gguf") and Path(path).is_file():
        return Path(path)
    if Path(path).is_dir() and not (Path(path) / "config.json").is_file():
        found = sorted(Path(path).glob("*.gguf"))
        if len(found) == 1:
            return found[0]
    return None


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.txt"])
        )
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelConfigError(
            f"--model-path {name}: not a local folder, and the hub does not give it: {reason}"
        ) from error


def _read_json(path: Path, required: bool) -> dict[str, Any]:
    if not path.is_file():
        if required:
            raise ModelConfigError(f"{path.parent} has no {path.name}: not a model folder")
        return {}
    try:
        found = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelConfigError(f"{path} is not a JSON object")
    return found


def _architecture(config: dict[str, Any], folder: Path) -> str:
    names = config.get("architectures") or []
    for name in names:
        if name in ARCHITECTURES:
            return str(name)
        if name in REFUSED:
            raise ModelConfigError(f"{folder}: {name} is not supported: {REFUSED[name]}")
    raise ModelConfigError(
        f"{folder}: architecture {', '.join(map(str, names)) or '(none named)'} is not supported; "
        f"supported are {', '.join(sorted(ARCHITECTURES))}"
    )


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's config; what stands beside it in a multimodal one holds for it too."""
    text = dict(config.get("text_config") or config)
    if "quantization_config" in config:
        text["quantization_config"] = config["quantization_config"]
    return text


def _context_len(text: dict[str, Any], wanted: int | None) -> int:
    trained = int(text.get("max_position_embeddings", 32768))
    if wanted is None:
        return trained
    if not 1 <= wanted <= trained:
        raise ModelConfigError(
            f"--context-length must be in [1, {trained}] (max_position_embeddings), got {wanted}"
        )
    return wanted


def _eos_ids(config: dict[str, Any], text: dict[str, Any], folder: Path) -> list[int]:
    generation = _read_json(folder / "generation_config.json", required=False)
    ids: list[int] = []
    for source in (generation, config, text):
        value = source.get("eos_token_id")
        if value is not None:
            ids.extend(value if isinstance(value, list) else [value])
    return sorted(set(ids))
