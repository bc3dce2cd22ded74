"""`python -m sglang.launch_server --model-path PATH`: start the HTTP server."""

from __future__ import annotations

import sys


def main(argv: list[str] | None = None) -> int:
    """Parse the command line, serve until a signal or a failure, return the exit status."""
    from sglang.srt.server_args import ServerArgsError, parse_server_args

    try:
        server_args = parse_server_args(sys.argv[1:] if argv is None else argv)
    except ServerArgsError as error:
        print(f"launch_server: error: {error}", file=sys.stderr)
        return 2
    from sglang.srt.entrypoints.launch import launch_server

    return launch_server(server_args)


if __name__ == "__main__":
    sys.exit(main())
