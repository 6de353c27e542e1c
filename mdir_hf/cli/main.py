"""Parse the command line, run a command, turn known errors into one line and an exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from mdir_hf._version import __version__
from mdir_hf.cli.compare import add_command as add_compare
from mdir_hf.cli.demo import add_command as add_demo
from mdir_hf.errors import MdirError

EXIT_KNOWN_ERROR = 1
EXIT_USAGE = 2  # argparse's own
EXIT_INTERRUPTED = 130  # the shell's convention, 128 + SIGINT

EPILOG = """exit status: 0 for any verdict, 1 for a known error, 2 for wrong usage, 3 for a verdict named by --fail-on.
environment: HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE, HF_HUB_DISABLE_PROGRESS_BARS as in huggingface_hub;
MDIR_HF_CACHE and MDIR_HF_CACHE_MAX_BYTES for our own cache of byte ranges; MDIR_DEBUG=1 for tracebacks."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="mdir-hf",
        description="Do two language models share weight ancestry? An answer from the weights alone, with a p-value.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mdir-hf {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_compare(commands)
    add_demo(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``mdir-hf`` and return its exit status.

    Args:
        arguments: The command line without the program's name; None: that of the process.
    """
    options = build_parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except MdirError as exc:
        if os.environ.get("MDIR_DEBUG"):
            raise
        sys.stderr.write(f"mdir-hf: error: {' '.join(str(exc).split())}\n")
        return EXIT_KNOWN_ERROR
    except KeyboardInterrupt:
        sys.stderr.write("\nmdir-hf: interrupted; nothing was left half-written\n")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone. Point stdout elsewhere, or the interpreter complains while it closes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_KNOWN_ERROR
