"""``mdir-hf card``, ``badge``, ``verify-badge`` and ``verify``, which add results to model cards or check them."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mdir_hf.cli import arguments
from mdir_hf.cli.early import check_input_file
from mdir_hf.cli.output import loading, remark, say, say_bytes, shown_if_stopped
from mdir_hf.lineage.cards import RELATIONS
from mdir_hf.report import Level

if TYPE_CHECKING:
    from mdir_hf.lineage.bom.check import BomCheck
    from mdir_hf.lineage.cards.card import CardProposal
    from mdir_hf.lineage.cards.verify_lineage import LineageCheck
    from mdir_hf.lineage.verify_merge import MergeCheck


def add_badge(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``badge`` command."""
    parser = commands.add_parser(
        "badge",
        help="make a badge of a report",
        description="Make a badge of a report: badge.svg, badge.md (the image, linked to the report) and badge.json "
        "(a shields endpoint), beside report.json. Reads only the report.",
    )
    parser.add_argument("report", metavar="REPORT.json", type=Path, help="output of `mdir-hf compare --json`")
    arguments.add_output(parser, "output folder (default: the folder of the report)")
    parser.add_argument("--image-url", default="badge.svg", help="URL or path of the image (default badge.svg)")
    parser.add_argument("--report-url", default="report.json", help="URL or path of the report (default report.json)")
    parser.add_argument("--bom-url", help="URL or path of a bill of materials, which the snippet then links as well")
    arguments.add_json(parser)
    parser.set_defaults(run=_run_badge)


def _run_badge(options: argparse.Namespace) -> int:
    from mdir_hf.lineage.cards.badge import make_badge
    from mdir_hf.lineage.cards.badge_folder import read_report, write_badge

    report = read_report(options.report)
    badge = make_badge(report)
    snippet = badge.markdown(options.image_url, options.report_url, options.bom_url)
    written_paths = write_badge(badge, report, snippet, options.output or options.report.parent)
    if options.json:
        result = {
            "label": badge.label,
            "message": badge.message,
            "markdown": snippet,
            "report_sha256": badge.claim.report_sha256,
            "files": [str(path) for path in written_paths],
        }
        say(json.dumps(result) + "\n")
    else:
        say(f"{badge.label} | {badge.message}\n\n{snippet}\n\n")
        say("".join(f"wrote {path}\n" for path in written_paths))
    return 0


STATES = ("match", "stale", "different")


def add_verify_badge(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``verify-badge`` command."""
    parser = commands.add_parser(
        "verify-badge",
        help="recompute a badge or report from the commits that it names",
        description="Recompute a badge or report from the commits that it names, with its seed, alpha and "
        "level. Prints match, stale (the same result, but a model has changed since) or different.",
    )
    parser.add_argument(
        "source",
        metavar="FILE|URL",
        help="a badge SVG, a report, or an endpoint beside its report; local or on the Hub",
    )
    parser.add_argument(
        "--level", choices=arguments.LEVELS, help="use another level than the badge; compares only the verdicts"
    )
    arguments.add_json(parser)
    arguments.add_fail_on(parser, "state", STATES)
    reading = arguments.add_access(parser)
    arguments.add_computing(reading)
    for side in ("reference", "candidate"):
        reading.add_argument(
            f"--{side}-tokenizer",
            help=f"repository or folder of the {side}'s vocabulary, if the badge only says that it was a folder",
        )
    parser.set_defaults(run=_run_verify_badge, check_files=_check_source)


def _check_source(options: argparse.Namespace) -> None:
    if "://" not in options.source:
        check_input_file(Path(options.source))


def _run_verify_badge(options: argparse.Namespace) -> int:
    with loading():
        from mdir_hf.comparison.settings import Settings
        from mdir_hf.lineage.cards.verify_badge import verify_badge

    check = verify_badge(
        options.source,
        level=None if options.level is None else Level(options.level),
        reading=arguments.reading_of(options),
        tokenizers=(options.reference_tokenizer, options.candidate_tokenizer),
        settings=Settings(device=options.device, max_bytes=options.max_bytes, max_memory_bytes=options.max_memory),
        listeners=arguments.listeners_of(options),
    )
    say((json.dumps(check.to_dict(), indent=2) if options.json else str(check)) + "\n", is_prose=not options.json)
    return arguments.exit_status(options, check.state)


def add_card(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``card`` command."""
    parser = commands.add_parser(
        "card",
        help="write a report into a model card",
        description="Write a section on weight ancestry into the model card of REPO. Prints the new card on standard "
        "output and its changes on standard error. --create-pr opens one pull request with card, report and badge.",
    )
    parser.add_argument("repo", metavar="REPO", help="owner/name on the Hub, one of the two models of the report")
    parser.add_argument("report", metavar="REPORT.json", type=Path, help="output of `mdir-hf compare --json`")
    parser.add_argument(
        "--bom", metavar="FILE", type=Path, help="output of `mdir-hf verify REPO --bom FILE`, which the card then links"
    )
    parser.add_argument("--create-pr", action="store_true", help="open a pull request; needs a token with write access")
    arguments.add_output(parser, "write the new card to this file instead of printing it", metavar="FILE")
    parser.add_argument(
        "--confirm-base-model",
        action="store_true",
        help="set base_model; only if you are the author and the other model is a base of this one",
    )
    parser.add_argument("--base-model-relation", choices=RELATIONS, help="also set base_model_relation")
    arguments.add_access(parser)
    parser.set_defaults(run=_run_card, refuse=parser.error)


def _run_card(options: argparse.Namespace) -> int:
    if options.base_model_relation and not options.confirm_base_model:
        options.refuse("only the author of the model can set --base-model-relation: it needs --confirm-base-model")
    from mdir_hf.lineage.bom.read import linked_bom
    from mdir_hf.lineage.cards.badge_folder import read_report
    from mdir_hf.lineage.cards.card import propose_card
    from mdir_hf.names import unquoted

    proposal = propose_card(
        options.repo,
        read_report(options.report),
        relation=options.base_model_relation,
        confirm_base_model=options.confirm_base_model,
        bom=None if options.bom is None else linked_bom(options.bom, options.repo),
        token=options.token,
        cache_dir=options.cache_dir,
    )
    remark("the repository has all of this already\n" if proposal.is_unchanged else proposal.diff())
    if proposal.changed:
        names = ", ".join(map(unquoted, proposal.changed[:5]))
        remark(f"note: these files have changed since the commit of the report: {names}\n")
    if options.create_pr:
        return _create_pull_request(proposal, options.token)
    if options.output is not None:
        _write(options.output, proposal.after)
    else:
        say_bytes(proposal.after)
    others = " and ".join(path for path in proposal.files if path != "README.md")
    remark(f"no request was sent; the card links to {others}, which --create-pr would add as well\n")
    return 0


def _create_pull_request(proposal: CardProposal, token: str | None) -> int:
    if proposal.is_unchanged:
        return 0
    pull_request = proposal.open_pull_request(token=token)
    for note in pull_request.notes:
        remark(f"note: {note}\n")
    say(f"{pull_request.url}\n")
    return 0


def _write(path: Path, content: bytes) -> None:
    from mdir_hf.errors import InputError
    from mdir_hf.writing import write_file

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content)
    except OSError as exc:
        raise InputError(f"cannot write {path}: {exc.strerror}") from exc
    remark(f"wrote {path}\n")


OUTCOMES = (*arguments.VERDICTS, "not_measured", "confirmed", "contradicted", "cannot_tell", "no_share")
OF_BOM = ("confirmed_in_part", "not_confirmed", "not_found", "changed", "unchanged", "no_commit")

BESIDE = Path()
"""Value of ``--mergekit`` if it is given without a file."""


def add_verify(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``verify`` command."""
    parser = commands.add_parser(
        "verify",
        help="compare a model with the base models that its card declares",
        description="Compare a model with every base model that its card declares, and print each declaration beside "
        "the measurement. No other models are compared. With --bom FILE and without a model, check a bill of materials "
        "from another author.",
    )
    parser.add_argument(
        "repo",
        metavar="REPO",
        nargs="?",
        help="owner/name, owner/name@revision, a Hub URL, or a folder; without it --bom FILE is checked",
    )
    arguments.add_bom(
        parser, "with REPO, write the result there as a CycloneDX bill of materials; without REPO, check FILE"
    )
    parser.add_argument(
        "--mergekit",
        metavar="FILE",
        nargs="?",
        type=Path,
        const=BESIDE,
        help="test whether a mergekit recipe gives the model, and measure each parent's share in every layer "
        "(default: mergekit_config.yml beside the model)",
    )
    arguments.add_settings(parser)
    arguments.add_json(parser)
    arguments.add_fail_on(parser, "outcome", (*OUTCOMES, *OF_BOM))
    reading = arguments.add_reading(parser)
    arguments.add_model(reading)
    arguments.add_computing(reading)
    parser.set_defaults(run=_run_verify, usage_error=usage_error)


def usage_error(options: argparse.Namespace) -> str | None:
    """Return the error message for options that cannot be combined, or None."""
    if options.repo is None and (options.bom is None or options.mergekit is not None):
        return "name a model (mdir-hf verify REPO) or a bill of materials (mdir-hf verify --bom FILE)"
    if options.bom is not None and options.mergekit is not None:
        return "--bom and --mergekit exclude each other: a recipe is not a declaration of the card"
    return None


def _run_verify(options: argparse.Namespace) -> int:
    if options.repo is None:
        return _run_on_bom(options)
    if options.mergekit is not None:
        return _run_on_merge(options)
    arguments.expect_writable_bom(options)
    with loading():
        from mdir_hf.lineage.cards.verify_lineage import verify_lineage

    with shown_if_stopped(partial(_show, options=options)) as keep:
        check = verify_lineage(
            arguments.model_of(options, options.repo),
            reading=arguments.reading_of(options),
            settings=arguments.settings_of(options),
            listeners=arguments.listeners_of(options),
            on_step=keep,
        )
    _show(check, options)
    arguments.write_bom(options, check, options.repo)
    return arguments.exit_status(options, *(outcome for base in check.bases for outcome in base.outcomes))


def _run_on_bom(options: argparse.Namespace) -> int:
    from mdir_hf.lineage.bom.read import read_bom_file

    document = read_bom_file(options.bom)
    with loading():
        from mdir_hf.lineage.bom.check import check_bom

    with shown_if_stopped(partial(_show, options=options)) as keep:
        check = check_bom(
            document,
            reading=arguments.reading_of(options),
            settings=replace(arguments.settings_of(options), max_bytes=None),
            listeners=arguments.listeners_of(options),
            max_bytes=options.max_bytes,
            on_step=keep,
        )
    _show(check, options)
    return arguments.exit_status(options, *check.outcomes)


def _run_on_merge(options: argparse.Namespace) -> int:
    recipe_file = None if options.mergekit == BESIDE else options.mergekit
    if recipe_file is not None:
        from mdir_hf.lineage.recipe import read_recipe_file

        read_recipe_file(recipe_file)
    with loading():
        from mdir_hf.lineage.verify_merge import verify_merge

    check = verify_merge(
        arguments.model_of(options, options.repo),
        recipe_file,
        reading=arguments.reading_of(options),
        settings=arguments.settings_of(options),
        listeners=arguments.listeners_of(options),
    )
    _show(check, options)
    return arguments.exit_status(options, check.outcome.value, *(parent.outcome for parent in check.parents))


def _show(check: LineageCheck | MergeCheck | BomCheck, options: argparse.Namespace) -> None:
    say((json.dumps(check.to_dict(), indent=2) if options.json else str(check)) + "\n", is_prose=not options.json)
