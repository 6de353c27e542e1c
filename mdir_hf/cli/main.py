"""Parse the command line, run a command, turn known errors into one line and an exit status."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence

from mdir_hf._version import __version__
from mdir_hf.cli.badge import add_command as add_badge
from mdir_hf.cli.card import add_command as add_card
from mdir_hf.cli.compare import add_command as add_compare
from mdir_hf.cli.demo import add_command as add_demo
from mdir_hf.cli.identify import add_command as add_identify
from mdir_hf.cli.inspect import add_command as add_inspect
from mdir_hf.cli.memory import keep_no_freed_blocks
from mdir_hf.cli.output import leave_output, remark
from mdir_hf.cli.publish import add_command as add_publish
from mdir_hf.cli.space import add_command as add_space
from mdir_hf.cli.survey import add_command as add_survey
from mdir_hf.cli.tree import add_command as add_tree
from mdir_hf.cli.verify import add_command as add_verify
from mdir_hf.cli.verify_badge import add_command as add_verify_badge
from mdir_hf.errors import MdirError
from mdir_hf.names import shown_name

EXIT_KNOWN_ERROR = 1
MAX_ERROR_LENGTH = 2000
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
    add_inspect(commands)
    add_survey(commands)
    add_tree(commands)
    add_identify(commands)
    add_publish(commands)
    add_verify(commands)
    add_badge(commands)
    add_card(commands)
    add_verify_badge(commands)
    add_space(commands)
    add_demo(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``mdir-hf`` and return its exit status.

    Args:
        arguments: The command line without the program's name; None: that of the process.
    """
    options = build_parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    keep_no_freed_blocks()
    try:
        if os.environ.get("HF_ENDPOINT"):
            import mdir_hf.model.hub  # noqa: F401  refuses what the Hub's client could not be imported with
        return run(options)
    except MdirError as exc:
        if os.environ.get("MDIR_DEBUG"):
            raise
        # What a hostile file is called, or claims, may be in it: one short line, whatever that is.
        remark(f"mdir-hf: error: {shown_name(str(exc), length=MAX_ERROR_LENGTH)}\n")
        return EXIT_KNOWN_ERROR
    except MemoryError:
        if os.environ.get("MDIR_DEBUG"):
            raise
        remark("mdir-hf: error: the memory of this machine was used up; try --level screen\n")
        return EXIT_KNOWN_ERROR
    except KeyboardInterrupt:
        remark("\nmdir-hf: interrupted; nothing was left half-written\n")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        leave_output()  # whoever read it has gone
        return EXIT_KNOWN_ERROR
