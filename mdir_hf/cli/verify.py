"""``mdir-hf verify REPO``."""

from __future__ import annotations

import argparse
import json
import sys

from mdir_hf.cli.arguments import LEVELS, VERDICTS, add_fail_on, add_reading, alpha, exit_status, print_plan

OUTCOMES = (*VERDICTS, "not_measured")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``verify`` to the command line."""
    parser = commands.add_parser(
        "verify",
        help="compare a model with the base models that its card declares",
        description="Compare a model with every base model that its card declares, and print each declaration beside "
        "its measurement. No other model is compared.",
    )
    parser.add_argument("repo", metavar="REPO", help="owner/name, owner/name@revision, a Hub URL, or a folder")
    parser.add_argument("--level", choices=LEVELS, default="auto", help="auto (default) stops as soon as it can")
    parser.add_argument("--alpha", type=alpha, default=1e-10, help="level, fixed before looking (default 1e-10)")
    parser.add_argument("--seed", type=int, default=0, help="seed of every random choice (default 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output, nothing else")
    add_fail_on(parser, "outcome", OUTCOMES)
    parser.add_argument("--quiet", action="store_true", help="no plan and no progress on standard error")
    add_reading(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compare, print, and return the exit status."""
    from mdir_hf.cards.verify_lineage import verify_lineage

    check = verify_lineage(
        options.repo,
        token=options.token,
        cache_dir=options.cache_dir,
        level=options.level,
        alpha=options.alpha,
        seed=options.seed,
        device=options.device,
        max_bytes=options.max_bytes,
        progress=not options.quiet,
        on_plan=None if options.quiet else print_plan,
    )
    sys.stdout.write((json.dumps(check.to_dict(), indent=2) if options.json else str(check)) + "\n")
    return exit_status(options, *(one.outcome for one in check.bases))
