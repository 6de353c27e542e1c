"""``mdir-hf family REPO``."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mdir_hf.cli import arguments
from mdir_hf.cli.early import check_index
from mdir_hf.cli.output import loading, remark, say, shown_if_stopped

if TYPE_CHECKING:
    from mdir_hf.lineage.family import Family
    from mdir_hf.lineage.index.base_index import BaseIndex


def add_family(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``family`` command."""
    parser = commands.add_parser(
        "family",
        help="which base models was a model made from?",
        description="Search an index of base models, compare the model with the bases that are found and those that "
        "its card declares, and match its layers with theirs.",
    )
    parser.add_argument("model", metavar="REPO", help=arguments.MODEL)
    arguments.add_index(parser)
    parser.add_argument(
        "--among",
        nargs="+",
        metavar="REPO",
        help="search these base models instead of an index; for a merge, this also matches its layers",
    )
    arguments.add_settings(
        parser, over=" of significance over all bases of the index, and for each declared base on its own"
    )
    arguments.add_json(parser)
    arguments.add_bom(parser, "also write the result there as a CycloneDX bill of materials")
    arguments.add_output(parser, "also write family.json, family.md (for a model card) and family.svg")
    reading = arguments.add_reading(parser)
    arguments.add_model(reading)
    arguments.add_computing(reading)
    parser.set_defaults(run=_run_family, usage_error=usage_error, check_files=_check_family)


def _check_family(options: argparse.Namespace) -> None:
    if options.index is not None and not options.index.startswith(("http://", "https://")):
        check_index(Path(options.index))
    arguments.expect_writable_bom(options)


def _run_family(options: argparse.Namespace) -> int:
    with loading():
        from mdir_hf.lineage.family import find_family

    index = _index(options)
    with shown_if_stopped(partial(_show, options=options)) as keep:
        family = find_family(
            arguments.model_of(options, options.model),
            index,
            are_named=options.among is not None,
            settings=replace(arguments.settings_of(options), describes_relatives=True),
            reading=arguments.reading_of(options),
            listeners=arguments.listeners_of(options),
            on_step=keep,
        )
    _show(family, options)
    arguments.write_bom(options, family, options.model)
    if options.output is not None:
        from mdir_hf.lineage.publishing import save_family

        written_paths = save_family(family, options.output)
        remark(f"written: {', '.join(str(path) for path in written_paths)}\n")
    return 0


def usage_error(options: argparse.Namespace) -> str | None:
    """Return the error message for options that cannot be combined, or None."""
    if options.among is not None and options.index is not None:
        return "--among and --index exclude each other: both name the bases to search"
    return None


def _index(options: argparse.Namespace) -> BaseIndex:
    if options.among is None:
        from mdir_hf.lineage.index.atlas import open_index

        index, note = open_index(options.index, token=options.token, cache_dir=options.cache_dir)
        if note:
            remark(f"{note}\n")
        return index
    from mdir_hf.lineage.index.building import BaseOutcome, extend_index

    def report(outcome: BaseOutcome) -> None:
        if not outcome.is_held:
            remark(f"{outcome.name} is left out: {outcome.reason}\n")

    reading, listeners = arguments.reading_of(options), arguments.listeners_of(options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bases.safetensors"
        return extend_index(options.among, path, on_model=report, reading=reading, listeners=listeners)[0]


def _show(family: Family, options: argparse.Namespace) -> None:
    say((family.to_json() if options.json else str(family)) + "\n", is_prose=not options.json)
