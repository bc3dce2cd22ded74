"""Fuzz a running server's HTTP API from its OpenAPI description, with schemathesis.

    pip install schemathesis
    python -m sglang.launch_server --model-path tiny-hybrid --pp-size 2 --enable-metrics \
        --context-length 256 &
    python tools/fuzz_api.py --url http://127.0.0.1:30000

The short context keeps requests without a length limit short. Passes when no answer is a server
error (5xx), the server is healthy afterwards, answers as before, and its pools are empty.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import time
import urllib.request
from typing import Any


def main() -> int:
    """Run the fuzzer; status 1 when something failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="a running server")
    parser.add_argument("--max-examples", type=int, default=50, help="per route")
    parser.add_argument("--seconds", type=int, default=300, help="fuzz until this time is spent")
    parser.add_argument("--phases", default="examples,coverage,fuzzing", help="of schemathesis")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    command = _schemathesis()
    before = _greedy(args.url)
    started = time.monotonic()
    status = subprocess.run(
        [
            *command,
            *("run", f"{args.url}/openapi.json"),
            *("--checks", "not_a_server_error"),
            *("--phases", args.phases),
            *("--max-time", str(args.seconds)),
            *("--max-examples", str(args.max_examples)),
            *("--seed", str(args.seed)),
            *("--request-timeout", "60"),
            *("--workers", "2"),
        ],
        check=False,
    ).returncode
    print(f"fuzzed for {time.monotonic() - started:.0f} s, schemathesis says {status}")
    problems = ["a request was answered with a server error"] if status else []
    problems += _after(args.url, before)
    for problem in problems:
        print(f"fuzz_api: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _schemathesis() -> list[str]:
    beside = pathlib.Path(sys.executable).with_name("schemathesis")
    path = str(beside) if beside.exists() else shutil.which("schemathesis")
    if path is None:
        sys.exit("fuzz_api: schemathesis is not installed: pip install schemathesis")
    return [path]


def _after(url: str, before: str) -> list[str]:
    """What is wrong with the server once the fuzzer has gone."""
    if _greedy(url) != before:
        return ["the server answers otherwise than before"]
    urllib.request.urlopen(f"{url}/health_generate", timeout=30).close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        info = json.loads(urllib.request.urlopen(f"{url}/server_info", timeout=30).read())
        pools = info["memory_pools"]
        if not any(pool["held"] or pool["protected"] for pool in pools.values()):
            print(f"pools are empty: {pools}")
            return []
        time.sleep(0.2)
    return [f"pools are not empty: {pools}"]


def _greedy(url: str) -> str:
    params = {"max_new_tokens": 16, "temperature": 0}
    body: dict[str, Any] = {"text": "Once upon a time", "sampling_params": params}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode(), headers)
    answer = json.loads(urllib.request.urlopen(request, timeout=60).read())
    return str(answer["text"])


if __name__ == "__main__":
    sys.exit(main())
