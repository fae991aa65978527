"""The command `optpass`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from optpass.bisect import bisect
from optpass.errors import OptpassError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the exit status: 0, or 1 after an error, which is printed."""
    parser = argparse.ArgumentParser(prog="optpass", description="Tools for the torch.compile backend optpass.")
    commands = parser.add_subparsers(dest="command", required=True)

    search = commands.add_parser("bisect", help="find the rewrite that makes a program fail")
    search.add_argument("program", nargs=argparse.REMAINDER, help='the failing command: "python script.py"')
    search.set_defaults(run=_bisect)

    cache = commands.add_parser("cache", help="the cache of built kernels")
    cache.add_argument("action", choices=("stats", "clear"))
    cache.set_defaults(run=_cache)

    chosen = parser.parse_args(arguments)
    try:
        chosen.run(chosen)
    except OptpassError as error:
        print(f"optpass: {error}", file=sys.stderr)
        return 1
    return 0


def _bisect(arguments: argparse.Namespace) -> None:
    words = arguments.program
    command = shlex.split(words[0]) if len(words) == 1 else words
    if not command:
        raise OptpassError("no program to run", hint='optpass bisect "python script.py"')
    print(bisect(command, say=lambda line: print(line, flush=True)))


def _cache(arguments: argparse.Namespace) -> None:
    from optpass.backends.cache import Store  # loads the runtimes, which bisect does not need

    store = Store.default()
    print(store.stats() if arguments.action == "stats" else store.clear())


if __name__ == "__main__":
    sys.exit(main())
