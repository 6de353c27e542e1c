"""``mdir-hf publish DIR|INDEX --dataset owner/name``."""

from __future__ import annotations

import argparse
from pathlib import Path

from mdir_hf.cli.output import remark, say


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``publish`` to the command line."""
    parser = commands.add_parser(
        "publish",
        help="propose a survey or an index to a data set on the Hub",
        description="Open a pull request that adds a survey (results, trees and figures, but no rows of weights) or an "
        "index of base models to an existing data set on the Hub.",
    )
    parser.add_argument("place", metavar="DIR|INDEX", type=Path, help="folder of a survey, or file of an index")
    parser.add_argument("--dataset", metavar="owner/name", required=True, help="the data set")
    parser.add_argument("--name", help="name of the folder or file in the data set (default: its local name)")
    parser.add_argument("--token", help="token that may write discussions (default: HF_TOKEN or the saved login)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Open the pull request, print its URL, and return the exit status."""
    from mdir_hf.lineage.publishing import publish

    opened, paths = publish(options.place, options.dataset, name=options.name, token=options.token)
    for note in opened.notes:
        remark(f"note: {note}\n")
    remark(f"proposed: {', '.join(paths)}\n")
    say(f"{opened.url}\n")
    return 0
