"""`python -m sglang.bench_serving`: load a running server and report latencies and throughput.

Flags and the keys of the JSON line are SGLang's. It works against any server with OpenAI's API.
Lengths are sampled, prompts are random token ids; arrivals are a Poisson process of
`--request-rate`, at most `--max-concurrency` of them at once.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from sglang.srt.utils.hf_tokenizer import HfTokenizer
from sglang.srt.utils.sse_client import HttpError, post_events

PATHS = {
    "sglang": "/generate",
    "sglang-oai": "/v1/completions",
    "sglang-oai-chat": "/v1/chat/completions",
    "vllm": "/v1/completions",
    "vllm-chat": "/v1/chat/completions",
}


@dataclasses.dataclass(frozen=True)
class Prompt:
    """One request to send; lengths in tokens."""

    ids: list[int]
    output_len: int


@dataclasses.dataclass
class Outcome:
    """What came back; times in seconds. `error` is empty for a good answer."""

    prompt_len: int
    output_len: int = 0
    latency: float = 0.0
    ttft: float = 0.0
    gaps: list[float] = dataclasses.field(default_factory=list)
    error: str = ""


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="sglang.bench_serving", description=__doc__)
    add = parser.add_argument
    add("--backend", choices=sorted(PATHS), default="sglang")
    add("--base-url", default=None, help="instead of --host and --port")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=30000)
    add("--model", default=None, help="name in requests (default: the server's)")
    add("--tokenizer", default=None, help="folder (default: what the server reports)")
    add("--api-key", default=None)
    add("--dataset-name", choices=("random", "generated-shared-prefix"), default="random")
    add("--num-prompts", type=int, default=1000)
    add("--random-input-len", type=int, default=1024)
    add("--random-output-len", type=int, default=1024)
    add("--random-range-ratio", type=float, default=0.0, help="shortest length to longest")
    add("--gsp-num-groups", type=int, default=64, help="shared prefixes")
    add("--gsp-prompts-per-group", type=int, default=16)
    add("--gsp-system-prompt-len", type=int, default=2048)
    add("--gsp-question-len", type=int, default=128)
    add("--gsp-output-len", type=int, default=256)
    add("--request-rate", type=float, default=float("inf"), help="requests a second")
    add("--max-concurrency", type=int, default=None)
    add("--warmup-requests", type=int, default=1)
    add("--disable-ignore-eos", action="store_true")
    add("--disable-tqdm", action="store_true")
    add("--extra-request-body", type=json.loads, default={}, help="JSON added to each request")
    add("--output-file", default=None, help="a JSON line is appended here")
    add("--seed", type=int, default=1)
    return parser


def make_prompts(args: argparse.Namespace, vocab_size: int) -> list[Prompt]:
    """The requests of the data set that `args` names; the same for the same seed."""
    random = np.random.default_rng(args.seed)

    def ids(length: int) -> list[int]:
        return [int(token) for token in random.integers(0, vocab_size, length)]

    def length(longest: int) -> int:
        shortest = max(1, int(longest * args.random_range_ratio))
        return int(random.integers(shortest, max(longest, 1) + 1))

    if args.dataset_name == "random":
        return [
            Prompt(ids(length(args.random_input_len)), length(args.random_output_len))
            for _ in range(args.num_prompts)
        ]
    prompts = []
    for _ in range(args.gsp_num_groups):
        prefix = ids(args.gsp_system_prompt_len)
        for _ in range(args.gsp_prompts_per_group):
            prompts.append(Prompt(prefix + ids(args.gsp_question_len), args.gsp_output_len))
    order = random.permutation(len(prompts))
    return [prompts[i] for i in order]


class Load:
    """Sends prompts to one server and notes when each piece comes back."""

    def __init__(self, args: argparse.Namespace, url: str, model: str, tokenizer: Any) -> None:
        self._args = args
        self._url = url + PATHS[args.backend]
        self._model = model
        self._tokenizer = tokenizer

    async def send(self, prompt: Prompt) -> Outcome:
        """One request from start to end; failures are outcomes too."""
        outcome = Outcome(len(prompt.ids))
        started = last = time.perf_counter()
        try:
            events = post_events(self._url, self._body(prompt), self._args.api_key)
            async for event in events:
                num_tokens = self._read(event, outcome)
                now = time.perf_counter()
                if not num_tokens:
                    continue
                if outcome.ttft == 0.0:
                    outcome.ttft = now - started
                else:
                    outcome.gaps += [(now - last) / num_tokens] * num_tokens
                last = now
        except (OSError, HttpError, asyncio.IncompleteReadError, ValueError) as error:
            outcome.error = str(error) or type(error).__name__
        outcome.latency = time.perf_counter() - started
        return outcome

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        ignore_eos = not self._args.disable_ignore_eos
        if self._args.backend == "sglang":
            params = {
                "temperature": 0.0,
                "max_new_tokens": prompt.output_len,
                "ignore_eos": ignore_eos,
            }
            body: dict[str, Any] = {"input_ids": prompt.ids, "sampling_params": params}
        else:
            body = {
                "model": self._model,
                "temperature": 0.0,
                "max_tokens": prompt.output_len,
                "ignore_eos": ignore_eos,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            }
            if self._args.backend.endswith("chat"):
                text = self._tokenizer.decode(prompt.ids)
                body["messages"] = [{"role": "user", "content": text}]
            else:
                body["prompt"] = prompt.ids
        return {**body, "stream": True, **self._args.extra_request_body}

    def _read(self, event: dict[str, Any], outcome: Outcome) -> int:
        """Tokens that are new in this event."""
        if "error" in event:
            raise HttpError(str(event["error"]))
        before = outcome.output_len
        if "meta_info" in event:
            outcome.output_len = event["meta_info"]["completion_tokens"]
        elif event.get("usage"):
            outcome.output_len = event["usage"]["completion_tokens"]
            outcome.prompt_len = event["usage"]["prompt_tokens"]
        elif event.get("choices"):  # a server without continuous usage: one token an event
            outcome.output_len += 1
        return max(0, int(outcome.output_len - before))


async def run(args: argparse.Namespace, load: Load, prompts: list[Prompt]) -> list[Outcome]:
    """Send all prompts as the arguments say; outcomes in order of sending."""
    from tqdm import tqdm

    for prompt in prompts[: args.warmup_requests]:
        outcome = await load.send(prompt)
        if outcome.error:
            raise HttpError(f"the warm-up request failed: {outcome.error}")
    limit = asyncio.Semaphore(args.max_concurrency or len(prompts) or 1)
    bar = tqdm(total=len(prompts), disable=args.disable_tqdm)

    async def one(prompt: Prompt) -> Outcome:
        async with limit:
            outcome = await load.send(prompt)
        bar.update()
        return outcome

    tasks = [asyncio.create_task(one(p)) async for p in _arrivals(args, prompts)]
    outcomes = await asyncio.gather(*tasks)
    bar.close()
    return outcomes


async def _arrivals(args: argparse.Namespace, prompts: list[Prompt]) -> AsyncIterator[Prompt]:
    random = np.random.default_rng(args.seed)
    for prompt in prompts:
        yield prompt
        if np.isfinite(args.request_rate):
            await asyncio.sleep(random.exponential(1.0 / args.request_rate))


def summarize(args: argparse.Namespace, outcomes: list[Outcome], seconds: float) -> dict[str, Any]:
    """All figures; times in milliseconds where the name says so, rates a second."""
    good = [outcome for outcome in outcomes if not outcome.error]
    num_input = sum(outcome.prompt_len for outcome in good)
    num_output = sum(outcome.output_len for outcome in good)
    figures: dict[str, Any] = {
        "backend": args.backend,
        "dataset_name": args.dataset_name,
        "request_rate": args.request_rate if np.isfinite(args.request_rate) else "inf",
        "max_concurrency": args.max_concurrency,
        "duration": seconds,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(good) / seconds,
        "input_throughput": num_input / seconds,
        "output_throughput": num_output / seconds,
        "total_throughput": (num_input + num_output) / seconds,
        "concurrency": sum(outcome.latency for outcome in good) / seconds,
    }
    samples = {
        "e2e_latency": [o.latency for o in good],
        "ttft": [o.ttft for o in good if o.ttft],
        "tpot": [(o.latency - o.ttft) / (o.output_len - 1) for o in good if o.output_len > 1],
        "itl": [gap for o in good for gap in o.gaps],
    }
    for name, values in samples.items():
        in_ms = np.asarray(values or [0.0]) * 1000
        figures[f"mean_{name}_ms"] = float(in_ms.mean())
        figures[f"median_{name}_ms"] = float(np.median(in_ms))
        figures[f"std_{name}_ms"] = float(in_ms.std())
        for percentile in (90, 95, 99):
            figures[f"p{percentile}_{name}_ms"] = float(np.percentile(in_ms, percentile))
    return figures


def print_table(figures: dict[str, Any]) -> None:
    """The figures, one a line."""
    for name, value in figures.items():
        shown = f"{value:,.2f}" if isinstance(value, float) else value
        print(f"{name.replace('_', ' '):28} {shown}")


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; status 1 when the server can't be used or a request failed."""
    args = make_parser().parse_args(argv)
    url = (args.base_url or f"http://{args.host}:{args.port}").rstrip("/")
    try:
        card = _get(url + "/v1/models", args.api_key)["data"][0]
        tokenizer = HfTokenizer.from_path(args.tokenizer or _tokenizer_path(url, args, card))
        prompts = make_prompts(args, tokenizer.vocab_size)
        load = Load(args, url, args.model or card["id"], tokenizer)
        started = time.perf_counter()
        outcomes = asyncio.run(run(args, load, prompts))
    except (OSError, HttpError, ValueError) as error:
        print(f"bench_serving: error: {url}: {error}", file=sys.stderr)
        return 1
    figures = summarize(args, outcomes, time.perf_counter() - started)
    print_table(figures)
    if args.output_file:
        with open(args.output_file, "a", encoding="utf-8") as file:
            file.write(json.dumps(figures) + "\n")
    for message in sorted({outcome.error for outcome in outcomes if outcome.error})[:5]:
        print(f"bench_serving: failed request: {message}", file=sys.stderr)
    return 1 if figures["failed"] else 0


def _tokenizer_path(url: str, args: argparse.Namespace, card: dict[str, Any]) -> str:
    try:
        return str(_get(url + "/get_model_info", args.api_key)["tokenizer_path"])
    except (OSError, KeyError, ValueError):
        return str(card.get("root") or card["id"])


def _get(url: str, api_key: str | None) -> Any:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as response:
        return json.load(response)


if __name__ == "__main__":
    sys.exit(main())
