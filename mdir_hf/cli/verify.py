"""``mdir-hf verify REPO``, and ``mdir-hf verify --bom FILE``."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mdir_hf.cli import arguments
from mdir_hf.cli.output import say, shown_if_stopped

if TYPE_CHECKING:
    from mdir_hf.lineage.bom.check import BomCheck
    from mdir_hf.lineage.cards.verify_lineage import LineageCheck
    from mdir_hf.lineage.verify_merge import MergeCheck

OUTCOMES = (*arguments.VERDICTS, "not_measured", "confirmed", "no_share")
OF_BOM = ("confirmed_in_part", "contradicted", "not_found", "changed", "unchanged", "no_commit")

BESIDE = Path()
"""Value of ``--mergekit`` without a file."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``verify`` to the command line."""
    parser = commands.add_parser(
        "verify",
        help="compare a model with the base models that its card declares",
        description="Compare a model with every base model that its card declares, and print each declaration beside "
        "the measurement. No other models are compared. With --bom FILE and without a model, check a bill of materials "
        "from another author.",
    )
    parser.add_argument(
        "repo",
        metavar="REPO",
        nargs="?",
        help="owner/name, owner/name@revision, a Hub URL, or a folder; without it --bom FILE is checked",
    )
    arguments.add_bom(
        parser, "with REPO, write the result there as a CycloneDX bill of materials; without REPO, check FILE"
    )
    parser.add_argument(
        "--mergekit",
        metavar="FILE",
        nargs="?",
        type=Path,
        const=BESIDE,
        help="compare with the parents in a mergekit recipe, and measure the share of each in every layer "
        "(default: mergekit_config.yml beside the model)",
    )
    arguments.add_settings(parser)
    arguments.add_json(parser)
    arguments.add_fail_on(parser, "outcome", (*OUTCOMES, *OF_BOM))
    reading = arguments.add_reading(parser)
    arguments.add_model(reading)
    arguments.add_computing(reading)
    parser.set_defaults(run=run, usage_error=usage_error)


def usage_error(options: argparse.Namespace) -> str | None:
    """Return the problem of options that cannot be used together."""
    if options.repo is None and (options.bom is None or options.mergekit is not None):
        return "name a model (mdir-hf verify REPO) or a bill of materials (mdir-hf verify --bom FILE)"
    if options.bom is not None and options.mergekit is not None:
        return "--bom and --mergekit exclude each other: a recipe is not a declaration of the card"
    return None


def run(options: argparse.Namespace) -> int:
    """Compare, print, and return the exit status."""
    if options.repo is None:
        return _run_on_bom(options)
    if options.mergekit is not None:
        return _run_on_merge(options)
    arguments.expect_writable_bom(options)
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
    arguments.write_bom(options, check, options.repo)
    return arguments.exit_status(options, *(base.outcome for base in check.bases))


def _run_on_bom(options: argparse.Namespace) -> int:
    from mdir_hf.lineage.bom.check import check_bom
    from mdir_hf.lineage.bom.read import read_bom_file

    document = read_bom_file(options.bom)
    with shown_if_stopped(partial(_show, options=options)) as keep:
        check = check_bom(
            document,
            reading=arguments.reading_of(options),
            settings=replace(arguments.settings_of(options), max_bytes=None),
            listeners=arguments.listeners_of(options),
            max_bytes=options.max_bytes,
            on_step=keep,
        )
    _show(check, options)
    return arguments.exit_status(options, *check.outcomes)


def _run_on_merge(options: argparse.Namespace) -> int:
    from mdir_hf.lineage.verify_merge import verify_merge

    check = verify_merge(
        arguments.model_of(options, options.repo),
        None if options.mergekit == BESIDE else options.mergekit,
        reading=arguments.reading_of(options),
        settings=arguments.settings_of(options),
        listeners=arguments.listeners_of(options),
    )
    _show(check, options)
    return arguments.exit_status(options, *(parent.outcome for parent in check.parents))


def _show(check: LineageCheck | MergeCheck | BomCheck, options: argparse.Namespace) -> None:
    say((json.dumps(check.to_dict(), indent=2) if options.json else str(check)) + "\n", is_prose=not options.json)
