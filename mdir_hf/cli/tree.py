"""``mdir-hf tree DIR``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mdir_hf.cli import arguments
from mdir_hf.cli.output import say
from mdir_hf.errors import InputError, MdirError, one_line

if TYPE_CHECKING:
    from mdir_hf.lineage.trees.closer import CloserLook
    from mdir_hf.model.hub import IoLedger


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``tree`` to the command line."""
    parser = commands.add_parser(
        "tree",
        help="build the family trees of a survey",
        description="Build a family tree of each group of related models of a `mdir-hf survey`, from its stored rows. "
        "Branches are shown with their support, models with two parents are listed separately, and a root is named "
        "only if there is evidence which model came first.",
    )
    parser.add_argument("survey", metavar="DIR", type=Path, help="folder of a survey")
    parser.add_argument("--layers", action="store_true",
                        help="also read a few rows of each layer: shares of merges by layer, repeated layers, "
                        "and extended vocabularies")  # fmt: skip
    arguments.add_seed(parser, "the bootstrap over tokens")
    arguments.add_json(parser)
    arguments.add_reading(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Build, print and save the trees, and return the exit status."""
    from mdir_hf.comparison.progress import Watch
    from mdir_hf.lineage.survey.run import kept_fingerprints
    from mdir_hf.lineage.trees.tree import FamilyTree, grow_tree, trees_to_json
    from mdir_hf.model.hub import IoLedger
    from mdir_hf.render.folder import write_file

    report, fingerprints = kept_fingerprints(options.survey)
    groups = [group for group in report.groups() if len(group) > 1]
    missing = next((name for group in groups for name in group if name not in fingerprints), None)
    if missing is not None:
        raise InputError(
            f"the rows of {missing} are no longer stored; run the survey again with a larger --cache-bytes",
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
    """Open the models of a group at the commits in the survey, and read rows of their layers."""
    from mdir_hf.lineage.fingerprints.opening import open_model
    from mdir_hf.lineage.survey.planning import SAMPLE, load_sample
    from mdir_hf.lineage.trees.closer import look_closer
    from mdir_hf.model.opened import Model

    sample = load_sample(options.survey / SAMPLE)
    opened: dict[str, Model] = {}
    notes = []
    for name in group:
        try:
            opened[name] = open_model(name, arguments.reading_of(options), ledger, sample.pins.get(name))
        except MdirError as exc:
            notes.append(f"the layers of {name} could not be read: {one_line(exc)}")
    look = look_closer(opened)
    return replace(look, notes=(*notes, *look.notes))
