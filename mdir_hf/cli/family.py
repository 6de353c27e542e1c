"""``mdir-hf family REPO`` and ``mdir-hf tree DIR``."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mdir_hf.cli import arguments
from mdir_hf.cli.early import check_index
from mdir_hf.cli.output import loading, remark, say, shown_if_stopped
from mdir_hf.errors import InputError, MdirError, one_line
from mdir_hf.lineage.survey import expect_survey

if TYPE_CHECKING:
    from mdir_hf.lineage.family import Family
    from mdir_hf.lineage.index.base_index import BaseIndex
    from mdir_hf.lineage.trees.aligning import CloserLook
    from mdir_hf.model.hub import IoLedger


def add_family(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``family`` command."""
    parser = commands.add_parser(
        "family",
        help="find the family of a model: its nearest bases, the bases on its card, and matching layers",
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
    check_index(options)
    arguments.expect_writable_bom(options)


def _run_family(options: argparse.Namespace) -> int:
    with loading():
        from mdir_hf.lineage.family import find_family

    index = _index(options)
    with shown_if_stopped(partial(_show, options=options)) as keep:
        family = find_family(
            arguments.model_of(options, options.model),
            index,
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
    say((family.to_json() if options.json else str(family)) + "\n", is_prose=False)


def add_tree(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``tree`` command."""
    parser = commands.add_parser(
        "tree",
        help="build the family trees of a survey",
        description="Build a family tree of each group of related models of a `mdir-hf survey`, from its stored rows. "
        "Branches are shown with their support, and models with two parents are listed separately. A tree has no root, "
        "because weights do not show which model came first.",
    )
    parser.add_argument("survey", metavar="DIR", type=Path, help="folder of a survey")
    parser.add_argument("--layers", action="store_true",
                        help="also read a few rows of each layer: shares of merges by layer")  # fmt: skip
    arguments.add_seed(parser, "the bootstrap over tokens")
    arguments.add_json(parser)
    arguments.add_reading(parser)
    parser.set_defaults(run=_run_tree, check_files=lambda options: expect_survey(options.survey))


def _run_tree(options: argparse.Namespace) -> int:
    with loading():
        from mdir_hf.comparison.progress import Watch
        from mdir_hf.lineage.survey.folder import kept_rows
        from mdir_hf.lineage.trees.tree import FamilyTree, grow_tree, trees_to_json
        from mdir_hf.model.hub import IoLedger
        from mdir_hf.writing import write_file

    report, fingerprints = kept_rows(options.survey)
    groups = [group for group in report.groups() if len(group) > 1]
    missing_name = next((name for group in groups for name in group if name not in fingerprints), None)
    if missing_name is not None:
        raise InputError(
            f"the rows of {missing_name} are no longer stored; run the survey again with a larger --cache-bytes",
            subject=str(options.survey),
        )
    ledger, trees = IoLedger(), list[FamilyTree]()
    watch = Watch(ledger, arguments.listeners_of(options), from_start=True)
    with watch.listening():
        for group in groups:
            watch.part("trees", len(trees), len(groups))
            closer = _closer(group, options, ledger) if options.layers else None
            trees.append(grow_tree({name: fingerprints[name] for name in group}, seed=options.seed, closer=closer))
    text = trees_to_json(trees)
    write_file(options.survey / "tree.json", (text + "\n").encode())
    if options.json:
        say(text + "\n")
    else:
        text = "\n\n".join(map(str, trees)) + "\n" if trees else "no two models of this survey are related\n"
        say(text, is_prose=True)
    return 0


def _closer(group: Sequence[str], options: argparse.Namespace, ledger: IoLedger) -> CloserLook:
    from mdir_hf.lineage.fingerprints.opening import open_model
    from mdir_hf.lineage.survey.folder import SurveyFolder
    from mdir_hf.lineage.trees.aligning import look_closer
    from mdir_hf.model.opened import Model

    sample = SurveyFolder(options.survey).sample
    pins = {} if sample is None else sample.pins
    models: dict[str, Model] = {}
    notes = []
    for name in group:
        try:
            models[name] = open_model(name, arguments.reading_of(options), ledger, pins.get(name))
        except MdirError as exc:
            notes.append(f"the layers of {name} could not be read: {one_line(exc)}")
    look = look_closer(models)
    return replace(look, notes=(*notes, *look.notes))
