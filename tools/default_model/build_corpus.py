"""Write the training and validation text of the default model as JSON lines.

Each line is ``{"kind": ..., "long": ..., "turns": [[user, assistant], ...], "system": ...}`` for
a chat, or ``{"kind": "raw", "text": ...}`` for plain text.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import facts
import recall
import smalltalk
import stories
import wordnet

Document = dict[str, Any]
QUESTIONS = [
    "What is {one}?",
    "What is {one}?",
    "What does {noun} mean?",
    "Tell me what {one} is.",
    "Explain what {one} is.",
    "what is {one}",
]


# Weights of the kinds of documents, in the order used in ``Builder.document``.
WEIGHTS = {"main": [24, 4, 10, 6, 11, 9, 1, 12, 22, 1], "copy": [14, 2, 5, 6, 5, 4, 0, 60, 50, 1]}


class Builder:
    """Draws documents of every kind from one random generator."""

    def __init__(self, seed: int, nouns: list[tuple[str, str]], mix: str = "main") -> None:
        self.rng = random.Random(seed)
        self.nouns = nouns
        self.mix = mix

    def _definition(self) -> tuple[str, str]:
        noun, gloss = self.rng.choice(self.nouns)
        return wordnet.definition(noun, gloss, self.rng.choice(QUESTIONS))

    def _single(self) -> tuple[str, str]:
        """One exchange of any short kind."""
        choices: list[Callable[[], tuple[str, str]]] = [
            lambda: facts.fact(self.rng),
            lambda: facts.fact(self.rng),
            lambda: smalltalk.talk(self.rng),
            lambda: smalltalk.repeat(self.rng),
        ]
        if self.nouns:
            choices.append(self._definition)
        return self.rng.choice(choices)()

    def document(self) -> Document:
        """One random document; the weights set the shares of the corpus."""
        rng = self.rng
        kind = rng.choices(
            ["fact", "define", "talk", "name", "mixed", "story", "raw", "copy", "recall", "far"],
            WEIGHTS[self.mix],
        )[0]
        if kind == "raw":
            return {"kind": kind, "text": stories.story(rng)[1]}
        if kind == "define" and not self.nouns:
            kind = "fact"
        turns: list[tuple[str, str]]
        if kind == "fact":
            turns = [facts.fact(rng) for _ in range(rng.choice([1, 1, 2, 3]))]
        elif kind == "define":
            turns = [self._definition() for _ in range(rng.choice([1, 1, 2]))]
        elif kind == "talk":
            turns = [smalltalk.talk(rng)]
        elif kind == "name":
            turns = smalltalk.name_chat(rng)
        elif kind == "mixed":
            turns = [self._single() for _ in range(rng.randint(2, 5))]
        elif kind == "story":
            turns = [stories.story(rng)]
            if rng.random() < 0.2:
                turns.append(self._single())
        elif kind == "copy":
            turns = [recall.copy(rng) for _ in range(rng.choice([1, 2]))]
        elif kind == "recall":
            words = rng.choice([0, 0, 0, 0, 10, 30, 60, 120])
            turns = recall.recall(rng, words, rng.choice([1, 2, 3, 4, 6]))
        else:
            turns = recall.recall(rng, rng.choice([250, 400, 700]), rng.choice([4, 8, 12]))
        system = rng.choice(smalltalk.SYSTEM) if rng.random() < 0.15 else None
        return {"kind": kind, "long": kind == "far", "turns": turns, "system": system}


def _write(path: Path, builder: Builder, count: int) -> None:
    """Write ``count`` documents."""
    with path.open("w", encoding="utf-8") as handle:
        for _ in range(count):
            handle.write(json.dumps(builder.document()) + "\n")


def main() -> None:
    """Command line entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/default_model"))
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"))
    parser.add_argument("--nouns", type=int, default=220, help="number of WordNet glosses")
    parser.add_argument("--documents", type=int, default=120_000)
    parser.add_argument("--mix", choices=sorted(WEIGHTS), default="main")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    nouns = []
    if (args.wordnet / "data.noun").is_file():
        nouns = wordnet.common_nouns(args.wordnet, args.nouns)
    (args.out / "nouns.json").write_text(json.dumps(nouns, indent=0), encoding="utf-8")
    _write(args.out / "train.jsonl", Builder(args.seed, nouns, args.mix), args.documents)
    _write(args.out / "valid.jsonl", Builder(args.seed + 1000, nouns, args.mix), 1000)


if __name__ == "__main__":
    main()
