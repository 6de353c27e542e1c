"""``mdir-hf verify-badge FILE|URL``."""

from __future__ import annotations

import argparse
import json

from mdir_hf.cli import arguments
from mdir_hf.cli.output import say
from mdir_hf.report import Level

STATES = ("match", "stale", "different")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``verify-badge`` to the command line."""
    parser = commands.add_parser(
        "verify-badge",
        help="recompute a badge or report from the commits that it names",
        description="Recompute a badge or report from the commits that it names, with its seed, alpha and "
        "level. Prints match, stale (the same result, but a model has changed since) or different.",
    )
    parser.add_argument(
        "source",
        metavar="FILE|URL",
        help="a badge SVG, a report, or an endpoint beside its report; local or on the Hub",
    )
    parser.add_argument(
        "--level", choices=arguments.LEVELS, help="use another level than the badge; compares only the verdicts"
    )
    arguments.add_json(parser)
    arguments.add_fail_on(parser, "state", STATES)
    reading = arguments.add_access(parser)
    arguments.add_computing(reading)
    for side in ("reference", "candidate"):
        reading.add_argument(
            f"--{side}-tokenizer",
            help=f"repository or folder of the {side}'s vocabulary, if the badge only says that it was a folder",
        )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Recompute, print, and return the exit status."""
    from mdir_hf.lineage.cards.verify_badge import verify_badge

    check = verify_badge(
        options.source,
        level=None if options.level is None else Level(options.level),
        reading=arguments.reading_of(options),
        reference_tokenizer=options.reference_tokenizer,
        candidate_tokenizer=options.candidate_tokenizer,
        device=options.device,
        max_bytes=options.max_bytes,
        max_memory_bytes=options.max_memory,
        listeners=arguments.listeners_of(options),
    )
    say((json.dumps(check.to_dict(), indent=2) if options.json else str(check)) + "\n", is_prose=not options.json)
    return arguments.exit_status(options, check.state)
