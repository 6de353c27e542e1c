"""``mdir-hf inspect REPO``."""

from __future__ import annotations

import argparse

from mdir_hf.cli import arguments
from mdir_hf.cli.output import say


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``inspect`` to the command line."""
    parser = commands.add_parser(
        "inspect",
        help="say what a comparison sees of one model",
        description="Say what a comparison sees of one model: architecture, roles found in each layer, vocabulary, "
        "quantisation, and what it would read. Reads no weights.",
    )
    parser.add_argument("model", metavar="REPO", help=arguments.MODEL)
    arguments.add_json(parser)
    parser.add_argument(
        "--all-headers",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="read the header of every weight file: checks every shape, and counts what the layers would cost "
        "(default: where there are at most 8 files)",
    )
    arguments.add_model(arguments.add_reading(parser))
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Inspect, print, and return the exit status."""
    from mdir_hf.comparison.inspection import inspect_named

    model = arguments.model_of(options, options.model)
    found = inspect_named(
        model,
        arguments.reading_of(options),
        all_headers=options.all_headers,
        listeners=arguments.listeners_of(options),
    )
    say((found.to_json() if options.json else str(found)) + "\n", is_prose=not options.json)
    return 0
