"""``mdir-hf verify REPO``."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mdir_hf.cli import arguments
from mdir_hf.cli.output import say
from mdir_hf.cli.stopping import shown_if_stopped

if TYPE_CHECKING:
    from mdir_hf.lineage.cards.verify_lineage import LineageCheck
    from mdir_hf.lineage.merges.verify_merge import MergeCheck

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
    reading = arguments.add_reading(parser)
    arguments.add_model(reading)
    arguments.add_computing(reading)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compare, print, and return the exit status."""
    if options.mergekit is not None:
        return _run_on_merge(options)
    from mdir_hf.lineage.cards.verify_lineage import verify_lineage

    with shown_if_stopped(partial(_show, options=options)) as keep:
        check = verify_lineage(
            arguments.model_of(options, options.repo),
            reading=arguments.reading_of(options),
            settings=arguments.settings_of(options),
            listeners=arguments.listeners_of(options),
            on_step=keep,
        )
    _show(check, options)
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
    _show(check, options)
    return arguments.exit_status(options, *(one.outcome for one in check.parents))


def _show(check: LineageCheck | MergeCheck, options: argparse.Namespace) -> None:
    say((json.dumps(check.to_dict(), indent=2) if options.json else str(check)) + "\n", is_prose=not options.json)
