"""``mdir-hf identify``, ``index``, ``atlas`` and ``publish``: indexes of base models."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mdir_hf.cli import arguments
from mdir_hf.cli.early import check_index, check_input_file, check_save_file
from mdir_hf.cli.output import loading, remark, say, shown_if_stopped
from mdir_hf.cli.survey import add_list_arguments, is_list_given, list_usage_error, listed_models
from mdir_hf.errors import InputError

if TYPE_CHECKING:
    from mdir_hf.lineage.index.building import BaseOutcome
    from mdir_hf.lineage.index.identify import Identification


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``identify`` and ``index`` commands."""
    parser = commands.add_parser(
        "identify",
        help="find the base models of an index that a model shares ancestry with",
        description="Search an index of base models for those that share weight ancestry with a model, and compare "
        "the model with the bases found.",
    )
    parser.add_argument("model", metavar="REPO", help=arguments.MODEL)
    arguments.add_index(parser)
    parser.add_argument("--top", type=int, default=5, help="number of bases to test (default 5)")
    arguments.add_settings(parser, over=" of significance over all bases")
    parser.add_argument("--no-confirm", action="store_true", help="only search, without comparing")
    arguments.add_json(parser)
    reading = arguments.add_reading(parser)
    arguments.add_model(reading)
    arguments.add_computing(reading)
    parser.set_defaults(run=run_identify, check_files=check_index)

    parser = commands.add_parser(
        "index",
        help="build or extend an index of base models",
        description="Read a few rows of each base model into an index file. An existing index is extended. A base "
        "is read again, and replaced, only if its commit has changed.",
    )
    parser.add_argument("index", metavar="FILE", type=Path, help="the index")
    add_list_arguments(parser)
    arguments.add_reading(parser)
    parser.set_defaults(
        run=run_index, usage_error=index_usage_error, check_files=lambda options: check_save_file(options.index)
    )


def run_identify(options: argparse.Namespace) -> int:
    """Run the search and the comparisons, print the result, and return the exit status."""
    with loading():
        from mdir_hf.lineage.index.atlas import open_index
        from mdir_hf.lineage.index.identify import identify_in_steps

    index, note = open_index(options.index, token=options.token, cache_dir=options.cache_dir)
    if note:
        remark(f"{note}\n")
    with shown_if_stopped(partial(_show, options=options)) as keep:
        for identification in identify_in_steps(
            arguments.model_of(options, options.model),
            index,
            top=options.top,
            confirm=not options.no_confirm,
            settings=arguments.settings_of(options),
            reading=arguments.reading_of(options),
            listeners=replace(arguments.listeners_of(options), on_plan=None),
        ):
            keep(identification)
    _show(identification, options)
    return 0


def _show(identification: Identification, options: argparse.Namespace) -> None:
    say((identification.to_json() if options.json else str(identification)) + "\n", is_prose=not options.json)


def index_usage_error(options: argparse.Namespace) -> str | None:
    """Return the error message for missing models or incompatible options, or None."""
    if not is_list_given(options):
        return "name base models, or lists of them with --from, --author or --collection"
    return list_usage_error(options)


def run_index(options: argparse.Namespace) -> int:
    """Add base models to an index, and return the exit status."""
    from mdir_hf.lineage.index.building import extend_index

    names = listed_models(options)
    if not names:
        raise InputError("the lists name no base models")

    def report(outcome: BaseOutcome) -> None:
        remark(f"{outcome.kind}: {outcome.name}\n" if outcome.is_held else f"not added: {outcome.reason}\n")

    index, n_failed = extend_index(
        names,
        options.index,
        on_model=report,
        reading=arguments.reading_of(options),
        listeners=arguments.listeners_of(options),
    )
    if n_failed == len(names):
        raise InputError("none of the models could be added; the index is unchanged", subject=str(options.index))
    say(f"{options.index}: {len(index)} base models, {index.n_bytes / 1e6:.1f} MB of rows\n")
    return 0


def add_atlas(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``atlas`` command."""
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
    parser.set_defaults(run=_run_atlas, usage_error=_atlas_usage_error, check_files=_check_atlas)


def _atlas_usage_error(options: argparse.Namespace) -> str | None:
    if options.what == "build" and len(options.names) > 1:
        return "atlas build takes one list; to name base models use `mdir-hf atlas add`"
    return None


def _check_atlas(options: argparse.Namespace) -> None:
    if options.what == "build":
        check_input_file(Path(options.names[0]))


def _run_atlas(options: argparse.Namespace) -> int:
    with loading():
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

        pull_request, paths = publish(options.output, options.publish, token=options.token)
        for note in pull_request.notes:
            remark(f"note: {note}\n")
        remark(f"proposed: {', '.join(paths)}\n")
        say(f"{pull_request.url}\n")
    return 0


def add_publish(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``publish`` command."""
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
    parser.set_defaults(run=_run_publish, check_files=_check_published)


def _check_published(options: argparse.Namespace) -> None:
    if not options.place.exists():
        raise InputError("there is no such file or folder", subject=str(options.place))


def _run_publish(options: argparse.Namespace) -> int:
    from mdir_hf.lineage.publishing import publish

    pull_request, paths = publish(options.place, options.dataset, name=options.name, token=options.token)
    for note in pull_request.notes:
        remark(f"note: {note}\n")
    remark(f"proposed: {', '.join(paths)}\n")
    say(f"{pull_request.url}\n")
    return 0
