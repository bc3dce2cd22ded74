"""Weights into a stage's tensors: each stage reads its own slice of the checkpoint, all of it."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from sglang.srt.layers.linear import Targets
from sglang.srt.models.gguf_file import WEIGHTS_LINK, GgufFile


class LoadError(ValueError):
    """The checkpoint does not fit the model; the message names the tensor."""


class Loadable(Protocol):
    """What the loader needs of a model class."""

    IGNORED_PREFIXES: tuple[str, ...]
    NORM_OFFSET: float

    def targets(self) -> Targets:
        """Where each tensor of this stage goes."""

    @classmethod
    def canonical_name(cls, name: str) -> str:
        """The model's own name of a checkpoint tensor."""

    def unpack(self, name: str, value: torch.Tensor) -> Targets:
        """The targets' values that a tensor which is no target itself holds, by their names;
        none if it holds none. Raises ValueError on a shape that cannot be taken apart."""

    def finish_loading(self) -> None:
        """Called once all targets are filled."""


def load_checkpoint(
    model: Loadable, folder: Path, num_layers: int, own_layers: tuple[int, int]
) -> None:
    """Fill the model from the safetensors in `folder`, converting to the targets' dtype.

    own_layers: the stage's layers [start, end), of `num_layers` in the model.

    Raises LoadError when a tensor of the stage is missing or has another shape, or when the
    checkpoint holds one that no stage knows.
    """
    if (folder / WEIGHTS_LINK).exists():
        _load_gguf(model, folder / WEIGHTS_LINK, set(range(num_layers)) - set(range(*own_layers)))
        return
    targets = model.targets()
    others = set(range(num_layers)) - set(range(*own_layers))
    missing = set(targets)
    for path in checkpoint_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():
                    canonical = model.canonical_name(name)
                    if canonical in targets:
                        _copy(targets[canonical], file.get_tensor(name), name)
                        missing.discard(canonical)
                    elif not _belongs_elsewhere(canonical, model.IGNORED_PREFIXES, others):
                        parts = _unpack(model, canonical, file.get_tensor(name), name)
                        if not parts or not parts.keys() <= targets.keys():
                            raise LoadError(
                                f"{path.name} holds {name}, which the model does not have"
                            )
                        for part, value in parts.items():
                            _copy(targets[part], value, name)
                        missing.difference_update(parts)
        except SafetensorError as error:
            raise LoadError(f"{path} cannot be read: {error}") from error
    if missing:
        names = ", ".join(sorted(missing)[:4]) + (", ..." if len(missing) > 4 else "")
        raise LoadError(f"{folder} lacks {len(missing)} tensor(s) of this stage: {names}")
    model.finish_loading()


def check_load_format(folder: Path, load_format: str) -> None:
    """Raise LoadError when `--load-format` names another format than the model has."""
    found = "gguf" if (folder / WEIGHTS_LINK).exists() else "safetensors"
    if load_format not in ("auto", found):
        raise LoadError(f"--load-format {load_format}: the model has {found}")


def _load_gguf(model: Loadable, path: Path, others: set[int]) -> None:
    """This stage's tensors of a GGUF file, dequantised; none that no stage knows is left out."""
    targets, file = model.targets(), GgufFile(path)
    for name in file.names():
        if name not in targets and not _belongs_elsewhere(name, model.IGNORED_PREFIXES, others):
            raise LoadError(f"{path} holds {name}, which the model does not have")
    missing = set(targets)
    for name, values in file.tensors(missing.copy()):
        _copy(targets[name], torch.tensor(values), name)
        missing.discard(name)
    if missing:
        raise LoadError(f"{path} lacks {', '.join(sorted(missing)[:4])}")
    model.finish_loading()


def checkpoint_files(folder: Path) -> list[Path]:
    """The safetensors of a folder, by its index if it has one.

    Raises LoadError when one is missing.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = [folder / name for name in sorted(set(_weight_map(index).values()))]
    else:
        files = sorted(folder.glob("*.safetensors"))
    absent = [path.name for path in files if not path.is_file()]
    if absent or not files:
        raise LoadError(f"{folder} lacks {', '.join(absent) or 'safetensors'}")
    return files


def fill_dummy(model: Loadable, seed: int) -> None:
    """Seeded random weights (`--load-format dummy`), the same for every split over stages."""
    for name, target in model.targets().items():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) ^ (seed & 0xFFFFFFFF))
        if name.endswith("A_log"):
            value = torch.empty(target.shape).uniform_(1, 16, generator=generator).log()
        elif name.endswith((".dt_bias", ".D", "linear_attn.norm.weight")):
            value = torch.ones(target.shape)
        elif name.endswith("norm.weight") and target.dim() == 1:
            value = torch.full(target.shape, 1.0 - model.NORM_OFFSET)
        else:
            value = torch.randn(target.shape, generator=generator) * 0.02
        target.copy_(value)
    model.finish_loading()


def _weight_map(index: Path) -> dict[str, str]:
    found: Any = json.loads(index.read_text()).get("weight_map", {})
    return dict(found)


def _unpack(model: Loadable, canonical: str, value: torch.Tensor, name: str) -> Targets:
    try:
        return model.unpack(canonical, value)
    except ValueError as error:
        raise LoadError(
            f"{name} has shape {list(value.shape)} in the checkpoint, which does not fit the "
            f"config: {error}"
        ) from error


def _copy(target: torch.Tensor, value: torch.Tensor, name: str) -> None:
    if target.shape != value.shape:
        raise LoadError(
            f"{name} has shape {list(value.shape)} in the checkpoint, the config asks for "
            f"{list(target.shape)}"
        )
    target.copy_(value)


_LAYER = re.compile(r"^model\.layers\.(\d+)\.")
_ENDS = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")


def _belongs_elsewhere(name: str, ignored: tuple[str, ...], others: set[int]) -> bool:
    """Whether a tensor is another stage's, or left out on purpose."""
    layer = _LAYER.match(name)
    if layer is not None:
        return int(layer.group(1)) in others
    return name in _ENDS or name.startswith(ignored)
