"""``mdir-hf survey A B C … --output DIR``."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mdir_hf.cli import arguments
from mdir_hf.cli.completion import remember_models
from mdir_hf.cli.output import loading, remark, say, shown_if_stopped
from mdir_hf.errors import InputError
from mdir_hf.render.sections import counted

if TYPE_CHECKING:
    from mdir_hf.lineage.survey.results import PairResult, SurveyReport
    from mdir_hf.lineage.survey.run import SurveyPlan


def add_list_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options that name many models."""
    parser.add_argument("models", metavar="REPO", nargs="*", help="owner/name, owner/name@revision, a folder or a file")
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


MOST_PAIRS = 15
"""Maximum number of pairs printed per group; the JSON output contains all pairs."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``survey`` command."""
    parser = commands.add_parser(
        "survey",
        help="compare every pair of many models",
        description="Compare every pair of many models. Each model is read once: a sample of its rows. Results are "
        "written to a folder as they are computed. Run the same command again to continue a stopped survey.",
    )
    add_list_arguments(parser)
    arguments.add_output(parser, "folder for the results; required without --join")
    parser.add_argument("--join", metavar="DIR", type=Path, nargs="+", help="join the shards in these folders")
    parser.add_argument(
        "--alpha", type=arguments.alpha, default=1e-10, help="level of the whole survey (default 1e-10)"
    )
    parser.add_argument("--tokens", type=int, default=2048, help="rows to read of every model (default 2048)")
    arguments.add_seed(parser, "every random choice")
    parser.add_argument("--shard", type=_shard, default=(0, 1), metavar="I/N", help="run part I of N, from 0")
    parser.add_argument("--prepare", action="store_true",
                        help="only choose the tokens and pin the commits, for --sample of all shards")  # fmt: skip
    parser.add_argument("--sample", metavar="FILE", type=Path, help="sample.json from --prepare")
    parser.add_argument("--workers", type=int, help="processes on this machine (default: none except this one)")
    parser.add_argument("--scheduler", metavar="tcp://HOST:PORT", help="run on a dask cluster")
    arguments.add_device(parser)
    parser.add_argument("--layers", action="store_true",
                        help="describe the layers of relatives, and compare models without a relative in "
                             "full with one of each family")  # fmt: skip
    parser.add_argument("--declared", action="store_true", help="compare with the base models that the cards declare")
    parser.add_argument(
        "--cache-bytes", type=arguments.size, default=8 << 30, metavar="SIZE", help="most bytes of rows stored in DIR"
    )
    arguments.add_json(parser)
    arguments.add_reading(parser)
    parser.set_defaults(run=run, usage_error=usage_error)


def usage_error(options: argparse.Namespace) -> str | None:
    """Return the error message for missing or incompatible options, or None."""
    if options.output is None and (options.prepare or not options.join):
        return "name a folder for the results with --output"
    return list_usage_error(options)


def run(options: argparse.Namespace) -> int:
    """Run the survey, print and save the report, and return the exit status."""
    folder = options.output
    if options.prepare:
        return _prepare(options)
    if not options.join:
        _say_size(options)
    with loading():
        from mdir_hf.lineage.survey.run import kept_fingerprints
        from mdir_hf.lineage.survey.saving import join_shards, save_survey

    report = join_shards(options.join, folder) if options.join else _survey(options)
    remember_models(report.readable())
    if options.declared:
        from mdir_hf.lineage.survey.saving import add_declared

        report = add_declared(report, arguments.reading_of(options), progress=_shows_bars(options))
    _show(report, options)
    if folder is not None:
        save_survey(report, folder, fingerprints=kept_fingerprints(folder)[1])
        remark(f"saved in {folder}\n")
    return 0


def _show(report: SurveyReport, options: argparse.Namespace) -> None:
    say((report.to_json() if options.json else _text(report)) + "\n", is_prose=not options.json)


def _prepare(options: argparse.Namespace) -> int:
    with loading():
        from mdir_hf.lineage.survey.planning import SAMPLE
        from mdir_hf.lineage.survey.run import prepare_survey

    plan = _plan(options)
    _say_requests(plan, options, only_sample=True)
    sample = prepare_survey(plan, options.output)
    n_tokens, path = len(sample.tokens), options.output / SAMPLE
    say(f"{path}: {n_tokens} tokens, {len(sample.pins)} models; pass it to every shard with --sample\n")
    return 0


def _plan(options: argparse.Namespace) -> SurveyPlan:
    from mdir_hf.lineage.survey.planning import load_sample
    from mdir_hf.lineage.survey.run import SurveyPlan

    # The Hub's list may change between two shards; the sample has the list from --prepare.
    is_listed = is_list_given(options) or options.sample is None
    names = listed_models(options) if is_listed else load_sample(options.sample).names
    if len(names) == 1 and options.models.count(names[0]) > 1:
        raise InputError("the same model is named twice; name a second model", subject=names[0])
    return SurveyPlan(
        names=names,
        alpha=options.alpha,
        seed=options.seed,
        n_tokens=options.tokens,
        shard=options.shard,
        reading=arguments.reading_of(options),
        cache_bytes=options.cache_bytes,
        progress=_shows_bars(options),
        device=options.device,
        layers=options.layers,
    )


def _survey(options: argparse.Namespace) -> SurveyReport:
    from mdir_hf.lineage.survey.planning import take_sample
    from mdir_hf.lineage.survey.run import run_survey
    from mdir_hf.lineage.survey.work import open_engine

    if options.sample is not None:
        take_sample(options.sample, options.output)
    plan = _plan(options)
    _say_requests(plan, options, with_cards=options.declared)
    with shown_if_stopped(partial(_show_kept, options=options)) as keep:
        keep(options.output)
        with open_engine(workers=options.workers, scheduler=options.scheduler, device=options.device) as engine:
            return run_survey(plan, options.output, engine=engine)


def _show_kept(folder: Path, options: argparse.Namespace) -> None:
    from mdir_hf.lineage.survey.result_file import RESULTS, read_survey

    _show(read_survey([folder / RESULTS]), options)


def _shows_bars(options: argparse.Namespace) -> bool:
    return not (options.quiet or options.verbose)


def _say_size(options: argparse.Namespace) -> None:
    n_models = len(set(options.models))
    is_whole_list = not (options.lists or options.author or options.collection)
    if n_models > 1 and is_whole_list and _shows_bars(options) and sys.stderr.isatty():
        n_pairs = n_models * (n_models - 1) // 2
        remark(f"{counted(n_models, 'model')} to read, {counted(n_pairs, 'pair')} to compare\n")


def _say_requests(plan: SurveyPlan, options: argparse.Namespace, **what: bool) -> None:
    from mdir_hf.lineage.survey.run import requests_of

    planned = requests_of(plan, options.output, **what)
    if planned.n_models:
        remark(f"{planned}\n")


def _shard(text: str) -> tuple[int, int]:
    at, slash, n_shards = text.partition("/")
    if not slash or not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in (at, n_shards)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shard; write 0/4 for the first of four")
    return int(at), int(n_shards)


def _layers_text(result: PairResult) -> str:
    from mdir_hf.render.projection_words import drift_text

    return f"; {drift_text(result.layer_drift)}" if result.layer_drift else ""


def _text(report: SurveyReport) -> str:
    lines = []
    for group in report.groups():
        if len(group) == 1:
            continue
        lines.append(f"group: {', '.join(group)}")
        related = [pair for pair in report.pairs if set(pair) <= set(group) and report.is_related(*pair)]
        # In a large group the weakest relations are the interesting ones.
        related.sort(key=lambda pair: report.pairs[pair].log10_p or 0.0, reverse=True)
        for pair in related[:MOST_PAIRS]:
            result = report.pairs[pair]
            how = f", {result.found_by}" if result.found_by else ""
            lines.append(f"  {pair[0]} ~ {pair[1]}: {result.strength}{how}{_layers_text(result)}")
        if len(related) > MOST_PAIRS:
            lines.append(f"  and {len(related) - MOST_PAIRS} more related pairs of this group, which agree more")
    for name in report.without_relatives():
        n_compared, n_others = report.compared_with(name)
        so_far = f" so far, compared with {n_compared} of {n_others}" if n_compared < n_others else ""
        lines.append(f"no relative found{so_far}: {name}")
    if report.is_complete and (open_pairs := report.layers_to_compare()):
        looks = counted(len(open_pairs), "full comparison")
        lines.append(f"layers were not compared; add --layers to the same command to compare them: {looks}")
    lines += [f"not read: {name}: {model.error}" for name, model in report.models.items() if model.error]
    lines += [f"not computed: {a} ~ {b}: {pair.error}" for (a, b), pair in report.pairs.items() if pair.error]
    for first, middle, second in report.contradictions():
        lines.append(
            f"worth a look: {middle} is related to {first} and to {second}; {first} ~ {second}: "
            f"{report.not_found(first, second)}"
        )
    if any(model.declared_bases is not None for model in report.models.values()):
        lines += [f"related, and declared by neither: {a} ~ {b}" for a, b in report.undeclared()]
        lines += [f"declared, and {report.not_found(*pair)}: {' from '.join(pair)}" for pair in report.unsupported()]
    lines.append(report.progress_text)
    if not report.is_complete:
        lines.insert(0, f"not finished: {report.progress_text}; groups may grow")
    return "\n".join(lines)
