"""``mdir-hf index build|atlas|publish``: indexes of base models."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from mdir_hf.cli import arguments
from mdir_hf.cli.early import check_index, check_input_file, check_save_file, check_save_folder
from mdir_hf.cli.output import loading, remark, say
from mdir_hf.cli.survey import add_list_arguments, is_list_given, list_usage_error, listed_models
from mdir_hf.errors import InputError

if TYPE_CHECKING:
    from mdir_hf.lineage.index.building import BaseOutcome

DESCRIPTION = """build: read a few rows of each base model into an index file, which `mdir-hf family` searches. An
existing index is extended; a base is read again only if its commit has changed.
atlas: build an index of hundreds of base models as a data set, with a table of all bases, the reasons for missing
ones, and a card. A stopped build continues when it is run again.
publish: open a pull request that adds an index, an atlas or a survey (without rows of weights) to a data set."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``index`` command."""
    parser = commands.add_parser(
        "index",
        help="build an index of base models for family, or publish results",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", metavar="build|atlas|publish", choices=tuple(ACTIONS), help="see above")
    add_list_arguments(parser, what="base models; for atlas also a TOML list, for publish a file or folder")
    arguments.add_output(parser, "the index (build) or the folder of the atlas", metavar="PATH")
    parser.add_argument("--dataset", metavar="owner/name", help="publish: the data set; atlas: also publish there")
    parser.add_argument("--name", help="publish: name of the file or folder in the data set (default: its local name)")
    parser.add_argument(
        "--restart", action="store_true", help="build, atlas: read all again, and replace the index when it is whole"
    )
    arguments.add_json(parser)
    arguments.add_reading(parser)
    parser.set_defaults(
        run=_run, usage_error=_usage_error, check_output=_no_check, check_files=_check_files, listed_models=_base_models
    )


def _no_check(output: Path) -> None:
    """Leave the check of the output to :func:`_check_files`, which knows whether it is a file or a folder."""


def _usage_error(options: argparse.Namespace) -> str | None:
    if not is_list_given(options):
        if options.action == "publish":
            return "name a file or folder"
        return "name base models, or lists of them with --from, --author or --collection"
    if options.action == "publish":
        if len(options.models) != 1 or options.dataset is None or options.output is not None or options.restart:
            return "use index publish FILE|DIR --dataset owner/name"
        return None
    if options.output is None:
        return f"name the {'index' if options.action == 'build' else 'folder of the atlas'} with --output"
    return list_usage_error(options)


def _check_files(options: argparse.Namespace) -> None:
    if options.action == "publish":
        path = Path(options.models[0])
        if not path.exists():
            raise InputError("there is no such file or folder", subject=options.models[0])
        if path.is_file():
            check_index(path)
    elif options.action == "build":
        check_save_file(options.output)
        if options.output.exists():
            check_index(options.output)
        if not (options.author or options.collection or listed_models(options)):
            raise InputError("the lists name no base models")
    else:
        from mdir_hf.lineage.index.table import read_list

        check_save_folder(options.output)
        for name in filter(_is_table, options.models):
            check_input_file(Path(name))
            read_list(Path(name))


def _base_models(options: argparse.Namespace) -> list[str]:
    return [] if options.action == "publish" else [name for name in options.models if not _is_table(name)]


def _is_table(name: str) -> bool:
    """Return whether a name is a list of base models: a TOML file, or the table of an earlier atlas."""
    return name.endswith((".toml", ".jsonl"))


def _run(options: argparse.Namespace) -> int:
    return ACTIONS[options.action](options)


def _build(options: argparse.Namespace) -> int:
    from mdir_hf.lineage.index.building import extend_index

    names = listed_models(options)
    if not names:
        raise InputError("the lists name no base models")

    def report(outcome: BaseOutcome) -> None:
        remark(f"{outcome.kind}: {outcome.name}\n" if outcome.is_held else f"not added: {outcome.reason}\n")

    index, n_failed = extend_index(
        names,
        options.output,
        on_model=report,
        reading=arguments.reading_of(options),
        listeners=arguments.listeners_of(options),
        restart=options.restart,
    )
    if n_failed == len(names):
        raise InputError("none of the models could be added; the index is unchanged", subject=str(options.output))
    counts = {"output": str(options.output), "bases": len(index), "not_added": n_failed, "bytes": index.n_bytes}
    text = f"{options.output}: {len(index)} base models, {index.n_bytes / 1e6:.1f} MB of rows"
    say(f"{json.dumps(counts) if options.json else text}\n")
    return 0


def _atlas(options: argparse.Namespace) -> int:
    with loading():
        from mdir_hf.lineage.index.atlas import build_atlas, summary_of
        from mdir_hf.lineage.index.table import AtlasBase, read_list

    tables = [name for name in options.models if _is_table(name)]
    options.models = [name for name in options.models if not _is_table(name)]
    bases = tuple(base for name in tables for base in read_list(Path(name)))
    bases += tuple(AtlasBase(repo) for repo in listed_models(options))

    def report(outcome: BaseOutcome) -> None:
        remark(f"{outcome.kind}: {outcome.name}{f': {outcome.reason}' if outcome.reason else ''}\n")

    table = build_atlas(
        bases,
        options.output,
        on_model=report,
        reading=arguments.reading_of(options),
        listeners=arguments.listeners_of(options),
        restart=options.restart,
    )
    counts = {"output": str(options.output), "bases": [{"repo": base.repo, "state": base.state} for base in table]}
    if not options.json:
        say(f"{options.output}: {summary_of(table)}\n")
    if options.dataset is not None:
        _propose(options.output, options, **counts)
    elif options.json:
        say(f"{json.dumps(counts)}\n")
    return 0


def _publish(options: argparse.Namespace) -> int:
    _propose(Path(options.models[0]), options)
    return 0


def _propose(place: Path, options: argparse.Namespace, **result: object) -> None:
    """Open a pull request, and print its address, as JSON with the given result."""
    from mdir_hf.lineage.publishing import publish

    pull_request, paths = publish(place, options.dataset, name=options.name, token=options.token)
    for note in pull_request.notes:
        remark(f"note: {note}\n")
    remark(f"proposed: {', '.join(paths)}\n")
    proposal = {**result, "pull_request": pull_request.url, "files": list(paths)}
    say(f"{json.dumps(proposal) if options.json else pull_request.url}\n")


ACTIONS = {"build": _build, "atlas": _atlas, "publish": _publish}
