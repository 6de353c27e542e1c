"""``mdir-hf survey A B C … --output DIR``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mdir_hf.cli import arguments
from mdir_hf.cli.completion import remember_models
from mdir_hf.cli.output import loading, remark, say, shown_if_stopped
from mdir_hf.errors import InputError, MdirError, one_line
from mdir_hf.lineage.survey import expect_survey, expect_tokens
from mdir_hf.names import without_folder
from mdir_hf.report.words import counted

if TYPE_CHECKING:
    from mdir_hf.lineage.survey.folder import SurveyFolder
    from mdir_hf.lineage.survey.results import SurveyReport
    from mdir_hf.lineage.survey.run import SurveyPlan
    from mdir_hf.lineage.trees.aligning import CloserLook
    from mdir_hf.lineage.trees.tree import FamilyTree
    from mdir_hf.model.hub import IoLedger


def add_list_arguments(parser: argparse.ArgumentParser, *, what: str = "models") -> None:
    """Add options that name many models; ``what`` says in the help text which."""
    help_text = f"{what}: owner/name, owner/name@revision, a folder or a file"
    parser.add_argument("models", metavar="REPO", nargs="*", help=help_text)
    parser.add_argument("--from", dest="lists", metavar="FILE", type=Path, action="append", default=[],
                        help="file with one model per line (# starts a comment; repeatable)")  # fmt: skip
    parser.add_argument("--author", metavar="NAME", action="append", default=[],
                        help="models of a user or organisation, most downloads first (repeatable)")  # fmt: skip
    parser.add_argument("--limit", type=int, default=100, help="most models of one author (default 100)")
    parser.add_argument("--any-task", action="store_true", help="include models that the Hub lists under other tasks")
    parser.add_argument("--collection", metavar="SLUG", action="append", default=[],
                        help="models of a collection, by slug or URL (repeatable)")  # fmt: skip


def is_list_given(options: argparse.Namespace) -> bool:
    """Return whether any models or lists of models were given."""
    return bool(options.models or options.lists or options.author or options.collection)


def list_usage_error(options: argparse.Namespace) -> str | None:
    """Return the error message for list options that cannot be combined, or None."""
    if (options.author or options.collection) and options.local_files_only:
        return "--author and --collection need the network, which --local-files-only forbids"
    return None


def listed_models(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the models that the command line names or lists, in order and without duplicates.

    Raises:
        InputError: If a file cannot be read or a Hub list is empty.
        HubError: If a request to the Hub fails.
    """
    names = list(options.models)
    for path in options.lists:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as exc:
            raise InputError(f"cannot read the list of models {path}: {exc}") from exc
        names += [name for line in lines if (name := line.split("#")[0].strip())]
    return tuple(dict.fromkeys([*names, *_listed(options)]))


def _listed(options: argparse.Namespace) -> list[str]:
    if not (options.author or options.collection):
        return []
    from mdir_hf.model.hub import models_of_author, models_of_collection

    names: list[str] = []
    for author in options.author:
        listing = models_of_author(
            author, limit=options.limit, text_generation=not options.any_task, token=options.token
        )
        names += listing.names
        if listing.is_cut:
            remark(f"{author}: only the {options.limit} models with most downloads; raise --limit for more\n")
    for collection in options.collection:
        names += models_of_collection(collection, token=options.token).names
    return names


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``survey`` command."""
    parser = commands.add_parser(
        "survey",
        help="which of many models are related? --tree draws their family trees",
        description="Find which of many models are related. Each model is read once: a sample of its rows. Pairs whose "
        "neurons or attention heads are similar are compared; in surveys of at most 20 models, all pairs. Results are "
        "written to a folder as they are computed. Run the same command again to continue a stopped survey.",
    )
    add_list_arguments(parser)
    arguments.add_output(parser, "folder for the results")
    parser.add_argument("--restart", action="store_true", help="remove the results of an earlier survey in the folder")
    parser.add_argument(
        "--alpha", type=arguments.alpha, default=1e-10, help="level of the whole survey (default 1e-10)"
    )
    parser.add_argument("--tokens", type=int, default=2048, help="rows to read of every model (default 2048)")
    arguments.add_seed(parser, "every random choice")
    parser.add_argument("--all-pairs", action="store_true", default=None, help="compare all pairs by their neurons")
    parser.add_argument("--prepare", action="store_true",
                        help="only choose the tokens and pin the commits, for --sample of all parts")  # fmt: skip
    parser.add_argument("--sample", metavar="DIR", type=Path,
                        help="folder of --prepare; the models named here are the part to read")  # fmt: skip
    parser.add_argument("--join", metavar="DIR", type=Path, nargs="+",
                        help="join the parts in these folders, and compare their models with each other")  # fmt: skip
    parser.add_argument("--workers", type=int, help="processes on this machine (default: none except this one)")
    parser.add_argument("--scheduler", metavar="tcp://HOST:PORT", help="run on a dask cluster")
    arguments.add_device(parser)
    parser.add_argument("--layers", action="store_true",
                        help="describe the layers of relatives and, for at most 20 models, compare the other pairs in "
                             "full")  # fmt: skip
    parser.add_argument("--tree", action="store_true",
                        help="also print the family tree of each group, which --layers refines by layer")  # fmt: skip
    parser.add_argument("--declared", action="store_true", help="compare with the base models that the cards declare")
    parser.add_argument(
        "--cache-bytes", type=arguments.size, default=8 << 30, metavar="SIZE", help="most bytes of rows stored in DIR"
    )
    arguments.add_json(parser)
    arguments.add_reading(parser)
    parser.set_defaults(run=run, usage_error=usage_error, check_files=_check_files)


def usage_error(options: argparse.Namespace) -> str | None:
    """Return the error message for missing or incompatible options, or None."""
    if options.output is None:
        return "name a folder for the results with --output"
    if options.join and (options.sample or options.prepare or is_list_given(options)):
        return "--join takes its models from its folders, so it excludes --sample, --prepare and names of models"
    if not (_earlier(options) or options.lists or options.author or options.collection) and len(options.models) < 2:
        return f"a survey needs at least two models, got {len(options.models)}"
    return list_usage_error(options)


def run(options: argparse.Namespace) -> int:
    """Run the survey, print and save the report, and return the exit status."""
    folder = options.output
    names = _names(options)
    if not (options.join or options.prepare):
        _say_size(options)
    with loading():
        from mdir_hf.lineage.survey.folder import SurveyFolder
        from mdir_hf.lineage.survey.run import open_folder, prepare_survey
        from mdir_hf.lineage.survey.saving import add_declared, save_survey

    earlier = [SurveyFolder(place) for place in _earlier(options)]
    plan = _plan(names, options, earlier)
    with open_folder(plan, folder, restart=options.restart) as state:
        for part in earlier:
            state.take_over(part)
        _say_requests(plan, state, only_sample=options.prepare, with_cards=options.declared and not options.prepare)
        if options.prepare:
            sample = prepare_survey(plan, state)
            sizes = f"{len(sample.tokens)} tokens, {len(sample.pins)} models"
            say(f"{folder}: {sizes}; pass it to every part with --sample\n")
            return 0
        report = _survey(plan, state, options)
        remember_models(report.readable())
        if options.declared:
            report = add_declared(report, arguments.reading_of(options), progress=_shows_bars(options))
        trees = _trees(report, state, options) if options.tree else []
        _show(report, options, trees)
        save_survey(report, folder, rows=state.rows)
    remark(f"saved in {folder}\n")
    return 0


def _show(report: SurveyReport, options: argparse.Namespace, trees: Sequence[FamilyTree] = ()) -> None:
    if options.json:
        body = report.to_dict() | ({"trees": [tree.to_dict() for tree in trees]} if options.tree else {})
        say(json.dumps(body, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        say(without_folder("\n\n".join([str(report), *map(str, trees)]), report.names) + "\n", is_prose=True)


def _trees(report: SurveyReport, state: SurveyFolder, options: argparse.Namespace) -> list[FamilyTree]:
    """Build the tree of each group of related models from the stored rows, and save all of them as tree.json."""
    from mdir_hf.comparison.progress import Watch
    from mdir_hf.lineage.trees.tree import FamilyTree, grow_tree, trees_to_json
    from mdir_hf.model.hub import IoLedger
    from mdir_hf.writing import write_file

    fingerprints = state.all_rows()
    groups = [group for group in report.groups() if len(group) > 1]
    missing_name = next((name for group in groups for name in group if name not in fingerprints), None)
    if missing_name is not None:
        raise InputError(
            f"the rows of {missing_name} are no longer stored; run the survey again with a larger --cache-bytes",
            subject=str(options.output),
        )
    ledger, trees = IoLedger(), list[FamilyTree]()
    watch = Watch(ledger, arguments.listeners_of(options), from_start=True)
    with watch.listening():
        for group in groups:
            watch.part("trees", len(trees), len(groups))
            closer = _closer(group, state, options, ledger) if options.layers else None
            trees.append(grow_tree({name: fingerprints[name] for name in group}, seed=options.seed, closer=closer))
    write_file(options.output / "tree.json", (trees_to_json(trees) + "\n").encode())
    return trees


def _closer(group: Sequence[str], state: SurveyFolder, options: argparse.Namespace, ledger: IoLedger) -> CloserLook:
    from mdir_hf.lineage.fingerprints.opening import open_model
    from mdir_hf.lineage.trees.aligning import look_closer
    from mdir_hf.model.opened import Model

    pins = {} if state.sample is None else state.sample.pins
    models: dict[str, Model] = {}
    notes = []
    for name in group:
        try:
            models[name] = open_model(name, arguments.reading_of(options), ledger, pins.get(name))
        except MdirError as exc:
            notes.append(f"the layers of {name} could not be read: {one_line(exc)}")
    look = look_closer(models)
    return replace(look, notes=(*notes, *look.notes))


def _check_files(options: argparse.Namespace) -> None:
    expect_tokens(options.tokens)
    for folder in _earlier(options):
        expect_survey(folder)


def _earlier(options: argparse.Namespace) -> list[Path]:
    return options.join or ([options.sample] if options.sample else [])


def _names(options: argparse.Namespace) -> tuple[str, ...]:
    names = listed_models(options)
    if len(names) == 1 and options.models.count(names[0]) > 1:
        raise InputError("the same model is named twice; name a second model", subject=names[0])
    if len(names) < 2 and not _earlier(options):
        raise InputError(f"a survey needs at least two models, got {len(names)}")
    return names


def _plan(names: tuple[str, ...], options: argparse.Namespace, earlier: list[SurveyFolder]) -> SurveyPlan:
    from mdir_hf.lineage.survey.run import SurveyPlan

    plan = SurveyPlan(
        names=names,
        alpha=options.alpha,
        seed=options.seed,
        n_tokens=options.tokens,
        all_pairs=options.all_pairs,
        layers=options.layers,
        reading=arguments.reading_of(options),
        cache_bytes=options.cache_bytes,
        progress=_shows_bars(options),
        device=options.device,
    )
    return plan.continuing(earlier[0]) if earlier else plan


def _survey(plan: SurveyPlan, state: SurveyFolder, options: argparse.Namespace) -> SurveyReport:
    from mdir_hf.lineage.survey.run import run_survey
    from mdir_hf.lineage.survey.work import open_executor

    with shown_if_stopped(partial(_show_kept, options=options)) as keep:
        keep(state)
        with open_executor(workers=options.workers, scheduler=options.scheduler, device=options.device) as executor:
            return run_survey(plan, state, executor=executor)


def _show_kept(state: SurveyFolder, options: argparse.Namespace) -> None:
    _show(state.report, options)


def _shows_bars(options: argparse.Namespace) -> bool:
    return not (options.quiet or options.verbose)


def _say_size(options: argparse.Namespace) -> None:
    n_models = len(set(options.models))
    is_whole_list = not (options.lists or options.author or options.collection)
    if n_models > 1 and is_whole_list and _shows_bars(options) and sys.stderr.isatty():
        remark(f"{counted(n_models, 'model')} to read\n")


def _say_requests(plan: SurveyPlan, state: SurveyFolder, **what: bool) -> None:
    from mdir_hf.lineage.survey.reads import requests_of

    planned = requests_of(plan, state, **what)
    if planned.n_models:
        remark(f"{planned}\n")
