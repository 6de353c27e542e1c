"""``mdir-hf verify REPO``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from mdir_hf.cli import arguments
from mdir_hf.cli.output import say

OUTCOMES = (*arguments.VERDICTS, "not_measured", "confirmed", "no_share")

BESIDE = Path()
"""``--mergekit`` without a file."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``verify`` to the command line."""
    parser = commands.add_parser(
        "verify",
        help="compare a model with the base models that its card declares",
        description="Compare a model with every base model that its card declares, and print each declaration beside "
        "its measurement. No other model is compared.",
    )
    parser.add_argument("repo", metavar="REPO", help="owner/name, owner/name@revision, a Hub URL, or a folder")
    parser.add_argument(
        "--mergekit",
        metavar="FILE",
        nargs="?",
        type=Path,
        const=BESIDE,
        help="compare with the parents that a recipe of mergekit names, and measure the share of each in every layer "
        "(default: the mergekit_config.yml beside the model)",
    )
    arguments.add_settings(parser)
    arguments.add_json(parser)
    arguments.add_fail_on(parser, "outcome", OUTCOMES)
    arguments.add_quiet(parser)
    reading = arguments.add_reading(parser)
    arguments.add_model(reading)
    arguments.add_computing(reading)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compare, print, and return the exit status."""
    if options.mergekit is not None:
        return _run_on_merge(options)
    from mdir_hf.lineage.cards.verify_lineage import verify_lineage

    check = verify_lineage(
        arguments.model_of(options, options.repo),
        reading=arguments.reading_of(options),
        settings=arguments.settings_of(options),
        listeners=arguments.listeners_of(options),
    )
    say((json.dumps(check.to_dict(), indent=2) if options.json else str(check)) + "\n")
    return arguments.exit_status(options, *(one.outcome for one in check.bases))


def _run_on_merge(options: argparse.Namespace) -> int:
    from mdir_hf.lineage.merges.verify_merge import verify_merge

    check = verify_merge(
        arguments.model_of(options, options.repo),
        None if options.mergekit == BESIDE else options.mergekit,
        reading=arguments.reading_of(options),
        settings=arguments.settings_of(options),
        listeners=arguments.listeners_of(options),
    )
    say((json.dumps(check.to_dict(), indent=2) if options.json else str(check)) + "\n")
    return arguments.exit_status(options, *(one.outcome for one in check.parents))
