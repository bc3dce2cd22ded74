"""Dense families in Llama's shape: what they do differently, and what their layers remember."""

from __future__ import annotations

from sglang.srt.mem_cache.layer_specs import AttentionSpec, LayerSpecs
from sglang.srt.models.architecture import (
    Architecture,
    Config,
    check_choice,
    check_multiple,
    derive_head_dim,
)
from sglang.srt.models.rope_config import rope_settings


def layer_specs(config: Config) -> list[LayerSpecs]:
    """Every layer keeps KV."""
    spec = AttentionSpec(config["num_key_value_heads"], config["head_dim"], config["head_dim"])
    return [(spec,)] * config["num_hidden_layers"]


def check(config: Config) -> None:
    """Raise ValueError on a config that `models/llama.py` does not implement."""
    check_choice(config, "hidden_act", "silu")
    check_multiple(config, "num_attention_heads", "num_key_value_heads")
    if config["use_sliding_window"]:
        raise ValueError("use_sliding_window is not supported: all layers attend to all tokens")
    windowed = set(config.get("layer_types") or ()) - {"full_attention"}
    if windowed:
        raise ValueError(f"layer_types: {sorted(windowed)[0]!r} is not supported")
    rope_settings(config)


def check_mistral(config: Config) -> None:
    """Mistral has no switch: a window is a number."""
    check_choice(config, "sliding_window", None)
    check(config)


def _family(model: str, check: object = check, **defaults: object) -> Architecture:
    assert callable(check)
    return Architecture(
        model=f"llama.{model}",
        layer_specs=layer_specs,
        required=(
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "vocab_size",
        ),
        check=check,
        defaults={
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "use_sliding_window": False,
            "sliding_window": None,
            **defaults,
        },
        derived=lambda config: {
            **derive_head_dim(config),
            "num_key_value_heads": config["num_attention_heads"],
        },
    )


ARCHITECTURES = {
    "LlamaForCausalLM": _family("LlamaForCausalLM"),
    # A config that does not say so has a window of 4,096.
    "MistralForCausalLM": _family("LlamaForCausalLM", check_mistral, sliding_window=4096),
    "Qwen2ForCausalLM": _family("Qwen2ForCausalLM"),
    "Qwen3ForCausalLM": _family("Qwen3ForCausalLM"),
}
