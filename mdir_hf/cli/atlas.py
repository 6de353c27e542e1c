"""``mdir-hf atlas build``, ``mdir-hf atlas add`` and ``mdir-hf publish``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mdir_hf.cli import arguments
from mdir_hf.cli.output import remark, say

if TYPE_CHECKING:
    from mdir_hf.lineage.index.building import BaseOutcome


def add_atlas(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``atlas`` to the command line."""
    parser = commands.add_parser(
        "atlas",
        help="build an index of hundreds of base models as a data set",
        description="Read a few rows of each base model of a list into an index, and write a table of all bases with "
        "the reasons for missing ones, and a card. To resume a build that was stopped, run the same command again. "
        "Models whose newest commit is in the index already are not read again.",
    )
    parser.add_argument(
        "what", metavar="build|add", choices=("build", "add"), help="build: from a TOML list. add: these base models"
    )
    parser.add_argument("names", metavar="LIST|REPO", nargs="+", help="the list (build), or base models (add)")
    arguments.add_output(parser, "the atlas: index, table and card", required=True)
    parser.add_argument("--publish", metavar="owner/name", help="open a pull request with it on this data set")
    arguments.add_reading(parser)
    parser.set_defaults(run=run, usage_error=usage_error)


def usage_error(options: argparse.Namespace) -> str | None:
    """Return the error message if more than one list is given."""
    if options.what == "build" and len(options.names) > 1:
        return "atlas build takes one list; to name base models use `mdir-hf atlas add`"
    return None


def run(options: argparse.Namespace) -> int:
    """Build or extend, print, and return the exit status."""
    from mdir_hf.lineage.index.atlas import AtlasBase, build_atlas, read_list, summary_of

    if options.what == "add":
        bases = tuple(AtlasBase(repo) for repo in dict.fromkeys(options.names))
    else:
        bases = read_list(Path(options.names[0]))

    def report(outcome: BaseOutcome) -> None:
        remark(f"{outcome.kind}: {outcome.name}{f': {outcome.reason}' if outcome.reason else ''}\n")

    table = build_atlas(
        bases,
        options.output,
        on_model=report,
        reading=arguments.reading_of(options),
        listeners=arguments.listeners_of(options),
    )
    say(f"{options.output}: {summary_of(table)}\n")
    if options.publish is not None:
        from mdir_hf.lineage.publishing import publish

        opened, paths = publish(options.output, options.publish, token=options.token)
        for note in opened.notes:
            remark(f"note: {note}\n")
        remark(f"proposed: {', '.join(paths)}\n")
        say(f"{opened.url}\n")
    return 0


def add_publish(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
    parser.set_defaults(run=_run_publish)


def _run_publish(options: argparse.Namespace) -> int:
    """Open the pull request, print its URL, and return the exit status."""
    from mdir_hf.lineage.publishing import publish

    opened, paths = publish(options.place, options.dataset, name=options.name, token=options.token)
    for note in opened.notes:
        remark(f"note: {note}\n")
    remark(f"proposed: {', '.join(paths)}\n")
    say(f"{opened.url}\n")
    return 0
