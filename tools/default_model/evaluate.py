"""Measure the exported model: sample answers, simple facts and recall over distance."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import facts
import recall
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = [
    "Hello!",
    "Who are you?",
    "How are you today?",
    "What can you do?",
    "What is the capital of France?",
    "What is the capital of Japan?",
    "What is the opposite of happy?",
    "What color is the sky?",
    "What sound does a cow make?",
    "What is 3 plus 4?",
    "What is 9 minus 5?",
    "What day comes after Monday?",
    "What is a computer?",
    "What is a bottle?",
    "Tell me a story about a fox.",
    "Tell me a short story about Anna.",
    "Thank you!",
    "Name three animals.",
    "The code of the red box is 4172. The code of the blue bag is 9035. "
    "What is the code of the red box?",
    "Why is the sea salty?",
    "Write a poem about winter.",
    "How do I cook rice?",
]
LENGTHS = [(200, 40), (500, 30), (1000, 20), (2000, 15), (6000, 8)]


class Chat:
    """The exported model behind its chat template, with greedy decoding."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.model.eval()

    def prompt(self, messages: list[dict[str, str]]) -> torch.Tensor:
        """Token ids of a chat, ready for the answer."""
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return self.tokenizer(text, return_tensors="pt").input_ids

    @torch.no_grad()
    def answer(self, messages: list[dict[str, str]], limit: int = 220) -> str:
        """Greedy answer to the last message."""
        ids = self.prompt(messages)
        out = self.model.generate(
            ids, max_new_tokens=limit, do_sample=False, attention_mask=torch.ones_like(ids)
        )
        return self.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def user(text: str) -> list[dict[str, str]]:
    """A chat of one user message."""
    return [{"role": "user", "content": text}]


def recall_accuracy(chat: Chat, tokens: int, count: int) -> float:
    """Share of exact answers to a code question in a prompt of about ``tokens`` tokens."""
    right = 0
    for seed in range(count):
        rng = random.Random(90_000 + tokens + seed)
        items = recall._codes(rng, 4)
        lines = recall.filler(rng, 1)
        while len(chat.prompt(user(" ".join(lines)))[0]) < tokens - 90:
            lines += recall.filler(rng, max(1, (tokens - 90) // 12))
            while len(chat.prompt(user(" ".join(lines)))[0]) > tokens - 60:
                lines.pop()
        for statement, _, _ in items:
            lines.insert(rng.randint(0, len(lines)), statement)
        _, question, value = rng.choice(items)
        text = " ".join(lines) + "\n" + question
        right += chat.answer(user(text), 8).strip() == value
    return right / count


def fact_accuracy(chat: Chat, count: int) -> dict[str, float]:
    """Share of exact answers for each kind of simple question."""
    out = {}
    for kind in dict.fromkeys(facts.KINDS):
        rng = random.Random(5)
        pairs = [kind(rng) for _ in range(count)]
        out[kind.__name__] = sum(chat.answer(user(q), 40).strip() == a for q, a in pairs) / count
    return out


def main() -> None:
    """Command line entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("python/sglang/assets/tiny-hybrid"))
    parser.add_argument("--out", type=Path, default=Path("build/default_model/evaluation.json"))
    parser.add_argument("--quick", action="store_true", help="samples and two lengths only")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    chat = Chat(args.model)
    result: dict[str, Any] = {"samples": []}
    for text in PROMPTS:
        answer = chat.answer(user(text))
        result["samples"].append([text, answer])
        print(f"> {text}\n{answer}\n", flush=True)
    for tokens, count in LENGTHS[:2] if args.quick else LENGTHS:
        share = recall_accuracy(chat, tokens, 10 if args.quick else count)
        result.setdefault("recall", {})[tokens] = share
        print(f"recall at {tokens} tokens: {share:.2f}", flush=True)
    result["facts"] = fact_accuracy(chat, 8 if args.quick else 25)
    print(result["facts"])
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
