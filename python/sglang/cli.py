"""The `sglang` command: `sglang serve …` starts a server, `sglang chat` talks to one."""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

_USAGE = """usage: sglang serve --model-path PATH [flags]   start a server (--help lists the flags)
       sglang chat [--url URL]                 talk to a running server"""


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand; returns the exit status."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["serve"]:
        from sglang.launch_server import main as serve

        return serve(words[1:])
    if words[:1] == ["chat"]:
        return chat(words[1:])
    is_help = words[:1] in (["-h"], ["--help"])
    print(_USAGE, file=sys.stdout if is_help else sys.stderr)
    return 0 if is_help else 2


def chat(argv: list[str]) -> int:
    """Read lines, stream answers. The conversation is kept; `/clear` forgets it, `/exit` leaves."""
    parser = argparse.ArgumentParser(prog="sglang chat", allow_abbrev=False)
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="server to talk to")
    parser.add_argument("--api-key", default=None, help="key of the server")
    parser.add_argument("--system", default=None, help="system message")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--max-tokens", type=int, default=512)
    args = parser.parse_args(argv)
    opening = [{"role": "system", "content": args.system}] if args.system else []
    messages = list(opening)
    while (line := _read_line()) is not None:
        if line == "/clear":
            messages = list(opening)
        elif line:
            messages.append({"role": "user", "content": line})
            try:
                answer = _print_answer(args, messages)
            except OSError as error:  # URLError is one
                print(f"{args.url}: {_reason(error)}", file=sys.stderr)
                return 1
            messages.append({"role": "assistant", "content": answer})
    return 0


def _read_line() -> str | None:
    try:
        line = input("> ").strip()
    except (EOFError, KeyboardInterrupt):
        print()
        return None
    return None if line == "/exit" else line


def _print_answer(args: argparse.Namespace, messages: list[dict[str, str]]) -> str:
    """Print the answer as it comes; a Ctrl-C ends it early and the server stops as well."""
    answer = ""
    body = {
        "model": "",
        "messages": messages,
        "temperature": args.temperature,
        "max_tokens": args.max_tokens,
        "stream": True,
    }
    try:
        for chunk in stream_events(f"{args.url}/v1/chat/completions", body, args.api_key):
            if "error" in chunk:
                raise OSError(chunk["error"]["message"])
            piece = chunk["choices"][0]["delta"].get("content") or "" if chunk["choices"] else ""
            print(piece, end="", flush=True)
            answer += piece
    except KeyboardInterrupt:
        pass
    print()
    return answer


def stream_events(url: str, body: dict[str, Any], api_key: str | None) -> Iterator[dict[str, Any]]:
    """The JSON events of a streamed answer. Raises OSError when there is none."""
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        for line in response:
            if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                yield json.loads(line[6:])


def _reason(error: OSError) -> str:
    if isinstance(error, urllib.error.HTTPError):
        try:
            return str(json.loads(error.read())["error"]["message"])
        except (ValueError, KeyError, TypeError):
            return str(error)
    return str(getattr(error, "reason", error))


if __name__ == "__main__":
    sys.exit(main())
