"""How an architecture describes itself from its config alone (no torch)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang.srt.mem_cache.layer_specs import LayerSpecs

Config = dict[str, Any]


@dataclass(frozen=True)
class Architecture:
    """An architecture's view of a config.

    model: "module.Class" under `sglang.srt.models` that computes it. layer_specs: what each layer
    remembers. required: fields that a config must have, all of them positive integers. defaults:
    values of fields that it may lack. derived: values that follow from other fields, for fields
    that the config lacks or gives as null or "auto". check: raises ValueError, naming the field, on
    a value that the model class does not implement.
    """

    model: str
    layer_specs: Callable[[Config], list[LayerSpecs]]
    required: tuple[str, ...]
    check: Callable[[Config], None]
    defaults: Config = field(default_factory=dict)
    derived: Callable[[Config], Config] = lambda config: {}

    def complete(self, config: Config) -> Config:
        """The config with its defaults filled in.

        Raises ValueError naming a field that is missing or has a value that cannot be served.
        """
        missing = [name for name in self.required if config.get(name) is None]
        if missing:
            raise ValueError(f"lacks {', '.join(missing)}")
        for name in self.required:
            if not isinstance(config[name], int) or config[name] < 1:
                raise ValueError(f"{name} must be a positive integer, got {config[name]!r}")
        if config.get("quantization_config"):
            method = config["quantization_config"].get("quant_method", "unknown")
            raise ValueError(f"quantization_config: quantised weights ({method}) are not supported")
        full = {**self.defaults, **config}
        for name, value in self.derived(full).items():
            if full.get(name) in (None, "auto"):
                full[name] = value
        self.check(full)
        return full


def derive_head_dim(config: Config) -> Config:
    """`head_dim` where a config leaves it to the width and the number of heads."""
    return {"head_dim": config["hidden_size"] // config["num_attention_heads"]}


def check_choice(config: Config, name: str, *supported: Any) -> None:
    """Raise ValueError unless `config[name]` is one of the values that are implemented."""
    if config[name] not in supported:
        choices = ", ".join(map(repr, supported))
        raise ValueError(f"{name} {config[name]!r} is not supported; supported: {choices}")


def check_multiple(config: Config, many: str, few: str) -> None:
    """Raise ValueError unless one head count is a multiple of the other."""
    if config[many] % config[few]:
        raise ValueError(f"{many} {config[many]} is not a multiple of {few} {config[few]}")


def check_layer_types(types: Sequence[str], config: Config, *supported: str) -> None:
    """Raise ValueError unless `types` names a supported kind for each of `num_hidden_layers`."""
    for kind in types:
        if kind not in supported:
            raise ValueError(f"layer_types: {kind!r} is not supported")
    if len(types) != config["num_hidden_layers"]:
        raise ValueError(
            f"layer_types names {len(types)} layers, num_hidden_layers is "
            f"{config['num_hidden_layers']}"
        )
