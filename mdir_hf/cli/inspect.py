"""``mdir-hf inspect REPO``."""

from __future__ import annotations

import argparse

from mdir_hf.cli import arguments
from mdir_hf.cli.output import say


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``inspect`` to the command line."""
    parser = commands.add_parser(
        "inspect",
        help="show how a comparison sees one model",
        description="Show how a comparison sees one model: architecture, roles in each layer, vocabulary, "
        "quantisation, and planned reads. Reads no weights.",
    )
    parser.add_argument("model", metavar="REPO", help=arguments.MODEL)
    arguments.add_json(parser)
    parser.add_argument(
        "--all-headers",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="read the header of every weight file: checks all shapes, and counts the bytes that layers would need "
        "(default: if there are at most 8 files)",
    )
    arguments.add_model(arguments.add_reading(parser))
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Inspect, print, and return the exit status."""
    from mdir_hf.comparison.inspection import inspect_named

    model = arguments.model_of(options, options.model)
    inspection = inspect_named(
        model,
        arguments.reading_of(options),
        all_headers=options.all_headers,
        listeners=arguments.listeners_of(options),
    )
    say((inspection.to_json() if options.json else str(inspection)) + "\n", is_prose=not options.json)
    return 0
