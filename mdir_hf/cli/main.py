"""Parse the command line, run a command, and report known errors as one line and an exit status."""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from mdir_hf._version import __version__
from mdir_hf.cli.align import add_command as add_align
from mdir_hf.cli.arguments import add_voice
from mdir_hf.cli.card import add_card
from mdir_hf.cli.compare import add_compare, add_inspect
from mdir_hf.cli.completion import add_command as add_completion
from mdir_hf.cli.completion import remember_models, seen_models
from mdir_hf.cli.early import check_early, typed_models
from mdir_hf.cli.family import add_family
from mdir_hf.cli.index import add_command as add_index
from mdir_hf.cli.output import complain, hear, leave_output
from mdir_hf.cli.parser import Parser, check_words, commands_of
from mdir_hf.cli.space import add_demo, add_space
from mdir_hf.cli.survey import add_command as add_survey
from mdir_hf.cli.verify import add_verify
from mdir_hf.errors import MdirError, OfflineError, RepositoryNotFoundError, ServerError
from mdir_hf.names import did_you_mean, shown_name

LARGE_N_BYTES = 16 << 20
"""Minimum size of freed blocks that glibc returns to the system. A lower limit would cost too many system calls."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h


def keep_no_freed_blocks() -> None:
    """Make glibc return large freed blocks to the system immediately.

    By default, glibc retains half a gigabyte after fifteen threads have run. Only the command line changes this, since
    a library must not change its host's allocator.
    """
    with suppress(AttributeError, OSError, TypeError):  # no such function, or no C library of this name
        c_library = ctypes.CDLL(None)
        c_library.mallopt(_M_MMAP_THRESHOLD, LARGE_N_BYTES)
        c_library.mallopt(_M_TRIM_THRESHOLD, LARGE_N_BYTES)


EXIT_KNOWN_ERROR = 1
MAX_ERROR_LENGTH = 2000
GOING_ON = "run the same command again to continue with the data already read; no file was left incomplete"
EXIT_INTERRUPTED = 130  # the shell's convention, 128 + SIGINT

EPILOG = """exit status: 0 for any verdict, 1 for a known error, 2 for wrong usage,
3 for a verdict named by --fail-on or a statement that verify finds wrong,
130 when interrupted.
environment: HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE and
HF_HUB_DISABLE_PROGRESS_BARS as in huggingface_hub; MDIR_HF_CACHE and
MDIR_HF_CACHE_MAX_BYTES for our own cache of byte ranges; MDIR_HF_ATLAS for
the index that family searches; NO_COLOR, FORCE_COLOR, COLUMNS."""

EXTENSION = "hf-mdir"
"""Name of the program that ``hf mdir`` runs."""

READERS = ("compare", "align", "family", "inspect", "verify")
"""Commands whose models are remembered for completion. Such a command succeeds only if all its models could be read."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser for the whole command line."""
    parser: argparse.ArgumentParser = Parser(
        prog="hf mdir" if Path(sys.argv[0]).stem == EXTENSION else "mdir-hf",
        description="Do two language models share weight ancestry? An answer from the weights\nalone, with a p-value.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mdir-hf {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_compare(commands)
    add_align(commands)
    add_inspect(commands)
    add_survey(commands)
    add_family(commands)
    add_verify(commands)
    add_card(commands)
    add_index(commands)
    add_space(commands)
    add_demo(commands)
    add_completion(commands)
    for command in commands_of(parser).values():
        add_voice(command)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``mdir-hf`` and return its exit status; ``arguments`` default to ``sys.argv[1:]``."""
    words = sys.argv[1:] if arguments is None else arguments
    parser = build_parser()
    check_words(parser, words)
    options, unexpected = parser.parse_known_args(words)
    if unexpected:
        many = "; `mdir-hf survey` compares more than two models" if options.command == "compare" else ""
        commands_of(parser)[options.command].error(f"unexpected: {' '.join(unexpected)}{many}")
    usage_error: Callable[[argparse.Namespace], str | None] = getattr(options, "usage_error", lambda options: None)
    if problem := usage_error(options):
        commands_of(parser)[options.command].error(problem)
    run: Callable[[argparse.Namespace], int] = options.run
    hear(remarks=not options.quiet)
    keep_no_freed_blocks()
    try:
        if os.environ.get("HF_ENDPOINT"):
            import mdir_hf.model.hub  # noqa: F401  rejects an endpoint with which the Hub's client cannot be imported
        check_early(options)
        status = run(options)
        if options.command in READERS:
            remember_models(typed_models(options))
        return status
    except MdirError as exc:
        if options.verbose:
            raise
        # A hostile file can contain anything in its name or metadata, so print one short line.
        complain(shown_name(f"{exc}{_nearest(exc)}", length=MAX_ERROR_LENGTH))
        return EXIT_KNOWN_ERROR
    except MemoryError:
        if options.verbose:
            raise
        complain("this machine ran out of memory; try --level auto, or a machine with more memory")
        return EXIT_KNOWN_ERROR
    except KeyboardInterrupt:
        complain(GOING_ON, label="mdir-hf: interrupted:")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        leave_output()  # the reader of the pipe is gone
        return EXIT_KNOWN_ERROR


def _nearest(exc: MdirError) -> str:
    if exc.subject is None or not isinstance(exc, (RepositoryNotFoundError, OfflineError, ServerError)):
        return ""
    from mdir_hf.model.hub.reference import folders_like

    name = exc.subject.partition("@")[0]
    return did_you_mean(name, [*seen_models(), *folders_like(name)])
