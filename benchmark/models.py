"""Model folders of a given size without weights, for `--load-format dummy`.

python benchmark/models.py hybrid-120m FOLDER
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

# About 116 M parameters: 12 layers, every 4th attention.
HYBRID_120M = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "full_attention_interval": 4,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "linear_num_key_heads": 6,
    "linear_num_value_heads": 12,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 65536,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "eos_token_id": 2,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
    },
}

# The same with attention in every layer.
DENSE_120M = {**HYBRID_120M, "full_attention_interval": 1}

CONFIGS = {"hybrid-120m": HYBRID_120M, "dense-120m": DENSE_120M}

EMBEDDED = Path(__file__).resolve().parents[1] / "python/sglang/assets/tiny-hybrid"


def write_model(folder: Path, config: dict[str, object] | None = None) -> Path:
    """A folder with a config and the embedded model's tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or HYBRID_120M, indent=1))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (EMBEDDED / name).is_file():
            shutil.copy(EMBEDDED / name, folder / name)
    return folder


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in CONFIGS:
        sys.exit(f"usage: models.py {{{','.join(CONFIGS)}}} FOLDER")
    write_model(Path(sys.argv[2]), CONFIGS[sys.argv[1]])
