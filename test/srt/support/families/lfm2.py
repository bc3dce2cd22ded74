"""LFM2: tied with adjusted MLP width; untied with bias, longer convolutions and attention first."""

from support.families import Family

FAMILY = Family(
    "Lfm2ForCausalLM",
    "Lfm2Config",
    common={"num_hidden_layers": 4, "intermediate_size": 96},
    shapes={
        "tied": {
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "block_multiple_of": 16,
            "layer_types": ["conv", "conv", "full_attention", "conv"],
        },
        "untied": {
            "hidden_size": 48,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "block_auto_adjust_ff_dim": False,
            "conv_L_cache": 5,
            "conv_bias": True,
            "tie_word_embeddings": False,
            "full_attn_idxs": [0, 2],
        },
    },
)
