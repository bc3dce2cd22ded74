"""Train the byte-level BPE tokenizer and pack the corpus into rows of token ids.

Rows come in two lengths.  Every row starts at the start of a document, so the model always sees a
document from an empty state.  A parallel array holds a loss weight per token.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Words keep their leading space; every digit is a token of its own, which makes copying easy.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
OTHER_WEIGHT = 0.1  # loss weight (in 1/100 units below) of text the model only reads
SHORT, LONG = 384, 1536


def texts(path: Path) -> Iterator[str]:
    """All plain strings of a corpus file."""
    for line in path.open(encoding="utf-8"):
        document = json.loads(line)
        if "text" in document:
            yield document["text"]
        else:
            for user, assistant in document["turns"]:
                yield user
                yield assistant


def train(corpus: Path, vocab: int) -> Tokenizer:
    """Train the tokenizer on the corpus file."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=SPECIAL,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts(corpus), trainer)
    return tokenizer


class Encoder:
    """Turns corpus documents into ids and loss weights (0 to 100)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.end = tokenizer.token_to_id("<|endoftext|>")
        self.start, self.stop = (tokenizer.token_to_id(t) for t in SPECIAL[1:])
        self.newline = tokenizer.encode("\n").ids

    def _message(self, role: str, text: str) -> tuple[list[int], list[int]]:
        head = [self.start, *self.tokenizer.encode(role + "\n").ids]
        body = [*self.tokenizer.encode(text).ids, self.stop]
        low, high = round(100 * OTHER_WEIGHT), 100
        weight = high if role == "assistant" else low
        ids = head + body + self.newline
        return ids, [0] * len(head) + [weight] * len(body) + [0] * len(self.newline)

    def encode(self, document: dict[str, Any]) -> tuple[list[int], list[int]]:
        """Ids and weights of one document, closed by the end-of-text token."""
        if "text" in document:
            ids = self.tokenizer.encode(document["text"]).ids
            return [*ids, self.end], [100] * (len(ids) + 1)
        parts = [("system", document["system"])] if document["system"] else []
        for user, assistant in document["turns"]:
            parts += [("user", user), ("assistant", assistant)]
        ids, weights = [], []
        for role, text in parts:
            more, weight = self._message(role, text)
            ids += more
            weights += weight
        return [*ids, self.end], [*weights, 0]


def pack(documents: list[tuple[list[int], list[int]]], length: int, pad: int) -> np.ndarray:
    """Pack documents into rows; the last document of a row may be cut off.

    Returns an array of shape ``(rows, 2, length)``: ids and weights.
    """
    rows: list[np.ndarray] = []
    ids: list[int] = []
    weights: list[int] = []
    for doc_ids, doc_weights in documents:
        ids += doc_ids
        weights += doc_weights
        if len(ids) >= length - 8:
            fill = max(0, length - len(ids))
            row = [(ids + [pad] * fill)[:length], (weights + [0] * fill)[:length]]
            rows.append(np.array(row, dtype=np.uint16))
            ids, weights = [], []
    return np.stack(rows)


def main() -> None:
    """Command line entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("build/default_model"))
    parser.add_argument("--vocab", type=int, default=3072)
    parser.add_argument("--keep-tokenizer", action="store_true", help="only pack the rows again")
    args = parser.parse_args()
    if args.keep_tokenizer:
        tokenizer = Tokenizer.from_file(str(args.data / "tokenizer.json"))
    else:
        tokenizer = train(args.data / "train.jsonl", args.vocab)
        tokenizer.save(str(args.data / "tokenizer.json"))
    encoder = Encoder(tokenizer)
    for split in ("train", "valid"):
        shelves: dict[bool, list[tuple[list[int], list[int]]]] = {False: [], True: []}
        shares: dict[str, int] = {}
        for line in (args.data / f"{split}.jsonl").open(encoding="utf-8"):
            document = json.loads(line)
            encoded = encoder.encode(document)
            shelves[bool(document.get("long"))].append(encoded)
            shares[document["kind"]] = shares.get(document["kind"], 0) + len(encoded[0])
        for is_long, name, length in ((False, "short", SHORT), (True, "long", LONG)):
            rows = pack(shelves[is_long], length, encoder.end)
            np.save(args.data / f"{split}_{name}.npy", rows)
            print(split, name, rows.shape, "answer share", (rows[:, 1] == 100).mean().round(3))
        total = sum(shares.values())
        print(split, total, "tokens", {k: round(v / total, 3) for k, v in sorted(shares.items())})


if __name__ == "__main__":
    main()
