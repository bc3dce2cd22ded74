"""Does a profiling failure on the first stage reach the others? On the released SGLang, for real.

    SGLANG_TEST_EXTRA_ARGS="--device cpu ..." python upstream/verify_failure.py DIR

DIR is what `verify_end_to_end.sh` takes. The second half of the backport is put in without the
first, so that profiling runs out of Mamba slots as in the release. The server must get ready all
the same, with static chunks, answer, and live through its idle checks. DIR is left as released.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "test" / "srt")]

import httpx  # noqa: E402

from sglang_backport.analysis import MIXIN, read  # noqa: E402
from sglang_backport.change import apply_change, patched_mixin, undo_change  # noqa: E402
from sglang_backport.target import find_target  # noqa: E402
from support.server_process import ServerProcess  # noqa: E402

FLAGS = "--pp-size 2 --enable-dynamic-chunking --max-mamba-cache-size 64".split()
SHOWN = ("Failed to profile", "fired up", "leak", "Scheduler hit an exception")
IDLE_SECONDS = 20


def main() -> int:
    """Print what the log says and the verdict."""
    folder = Path(sys.argv[1])
    package = find_target(str(folder / "bin" / "python"), None).package
    undo_change(package)
    original = read(package / MIXIN)
    apply_change(package)
    try:
        (package / MIXIN).write_text(patched_mixin(original, frees_slot=False), encoding="utf-8")
        verdict = _serve(folder)
    finally:
        undo_change(package)
    print(f"verdict: {verdict}")
    return int(verdict != "the failure reaches every stage and the server goes on")


def _serve(folder: Path) -> str:
    extra = shlex.split(os.environ.get("SGLANG_TEST_EXTRA_ARGS", ""))
    python = str(folder / "bin" / "python")
    model = str(folder / "tiny-qwen3.5")
    server = ServerProcess("sglang.launch_server", model, *FLAGS, *extra, python=python)
    try:
        server.wait_ready(840)
        answers = [_ask(server, f"{i} is a number") for i in range(3)]
        time.sleep(IDLE_SECONDS)
        answers.append(_ask(server, "still there?"))
        failed = sum(SHOWN[0] in line for line in server.lines)
        alive = server.process.poll() is None
    except AssertionError:
        return "the server did not get ready"
    except httpx.HTTPError as error:
        return f"the server did not answer: {error}"
    finally:
        _show(server.lines)
        server.close()
    if failed == 2 and alive and all(answers):
        return "the failure reaches every stage and the server goes on"
    return f"{failed} stage(s) told of a failure, alive: {alive}, answers: {answers}"


def _ask(server: ServerProcess, text: str) -> bool:
    parameters = {"max_new_tokens": 2, "temperature": 0, "ignore_eos": True}
    body = {"text": text, "sampling_params": parameters}
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=60)
    return bool(answer.status_code == 200)


def _show(lines: list[str]) -> None:
    for line in lines:
        if any(words in line for words in SHOWN):
            print(line[:200])


if __name__ == "__main__":
    sys.exit(main())
