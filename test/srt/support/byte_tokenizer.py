"""A byte-level tokenizer without training: one token a byte, some merges, some special tokens."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from sglang.srt.utils.hf_tokenizer import HfTokenizer, _byte_level_alphabet

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def make_backend(merges: tuple[tuple[str, str], ...] = ()) -> Tokenizer:
    """A `tokenizers.Tokenizer`: 256 byte tokens, `merges` of them, three special tokens.

    Merges are in the characters of the byte-level alphabet.
    """
    vocab = {char: i for i, char in enumerate(sorted(_byte_level_alphabet()))}
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    backend = Tokenizer(models.BPE(vocab=vocab, merges=list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return backend


def make_tokenizer(
    merges: tuple[tuple[str, str], ...] = (), chat_template: str = CHAT_TEMPLATE
) -> HfTokenizer:
    """The same as the front end uses it, with a small chat template."""
    return HfTokenizer(make_backend(merges), {"eos_token": "<|im_end|>"}, chat_template)
