"""``mdir-hf tree DIR``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mdir_hf.errors import InputError


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``tree`` to the command line."""
    parser = commands.add_parser(
        "tree",
        help="grow the family trees of a survey",
        description="Grow a family tree of each group of related models of a `mdir-hf survey`, from the rows that "
        "it kept. Trees have no root, branches have their support, models with two parents are told apart.",
    )
    parser.add_argument("survey", metavar="DIR", type=Path, help="folder of a survey")
    parser.add_argument("--seed", type=int, default=0, help="seed of the bootstrap over tokens (default 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output, nothing else")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Grow, print, save, and return the exit status."""
    from mdir_hf.saving.folder import write_file
    from mdir_hf.survey.run import kept_fingerprints
    from mdir_hf.survey.tree import grow_tree, trees_to_json

    report, kept = kept_fingerprints(options.survey)
    trees = []
    for group in report.groups():
        if len(group) > 1:
            missing = [name for name in group if name not in kept]
            if missing:
                raise InputError(
                    f"the rows of {missing[0]} are not kept any more; run the survey again with a larger --cache-bytes",
                    subject=str(options.survey),
                )
            trees.append(grow_tree({name: kept[name] for name in group}, seed=options.seed))
    text = trees_to_json(trees)
    write_file(options.survey / "tree.json", (text + "\n").encode())
    if options.json:
        sys.stdout.write(text + "\n")
    else:
        sys.stdout.write("\n\n".join(map(str, trees)) + "\n" if trees else "no two models of it are related\n")
    return 0
