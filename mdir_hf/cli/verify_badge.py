"""``mdir-hf verify-badge FILE|URL``."""

from __future__ import annotations

import argparse
import json
import sys

from mdir_hf.cli.arguments import LEVELS, add_fail_on, add_reading, exit_status, print_plan

STATES = ("match", "stale", "different")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``verify-badge`` to the command line."""
    parser = commands.add_parser(
        "verify-badge",
        help="compute a badge or report again from the commits that it names",
        description="Compute a badge or report again, from the commits that it names and with its seed, alpha and "
        "level. Prints match, stale (the same result, but a model has changed since) or different.",
    )
    parser.add_argument(
        "source", metavar="FILE|URL", help="a badge SVG, a report, or an endpoint beside its report; here or on the Hub"
    )
    parser.add_argument("--level", choices=LEVELS, help="another level than the badge's: compares the verdicts only")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output, nothing else")
    add_fail_on(parser, "state", STATES)
    parser.add_argument("--quiet", action="store_true", help="no plan and no progress on standard error")
    reading = add_reading(parser)
    for side in ("reference", "candidate"):
        reading.add_argument(
            f"--{side}-tokenizer",
            help=f"repository or folder of the {side}'s vocabulary, where the badge says only that it was a folder",
        )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compute, print, and return the exit status."""
    from mdir_hf.cards.verify_badge import verify_badge

    check = verify_badge(
        options.source,
        level=options.level,
        token=options.token,
        cache_dir=options.cache_dir,
        reference_tokenizer=options.reference_tokenizer,
        candidate_tokenizer=options.candidate_tokenizer,
        device=options.device,
        max_bytes=options.max_bytes,
        progress=not options.quiet,
        on_plan=None if options.quiet else print_plan,
    )
    sys.stdout.write((json.dumps(check.to_dict(), indent=2) if options.json else str(check)) + "\n")
    return exit_status(options, check.state)
