"""``mdir-hf card``, which makes the badge of a report and writes it into a model card."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from mdir_hf.cli import arguments
from mdir_hf.cli.output import remark, say, say_bytes
from mdir_hf.lineage.cards import RELATIONS

if TYPE_CHECKING:
    from mdir_hf.lineage.cards.card import CardProposal


def add_card(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``card`` command."""
    parser = commands.add_parser(
        "card",
        help="put a result on a model card, or make its badge",
        description="Without REPO, make the badge of a report: badge.svg, badge.md (the image, linked to the report) "
        "and badge.json (a shields endpoint), beside report.json. With REPO, write a section on weight ancestry into "
        "its model card: print the new card on standard output and its changes on standard error. --create-pr opens "
        "one pull request with card, report and badge.",
    )
    parser.add_argument(
        "repo", metavar="REPO", nargs="?", help="owner/name on the Hub, one of the two models of the report"
    )
    parser.add_argument("report", metavar="REPORT.json", type=Path, help="output of `mdir-hf compare --json`")
    arguments.add_json(parser)
    parser.add_argument(
        "--bom", metavar="FILE", type=Path, help="output of `mdir-hf verify REPO --bom FILE`, which the card then links"
    )
    parser.add_argument("--create-pr", action="store_true", help="open a pull request; needs a token with write access")
    arguments.add_output(parser, "folder for the badge (default: of the report) or for card, report and badge")
    parser.add_argument(
        "--confirm-base-model",
        action="store_true",
        help="set base_model; only if you are the author and the other model is a base of this one",
    )
    parser.add_argument("--base-model-relation", choices=RELATIONS, help="also set base_model_relation")
    arguments.add_access(parser)
    parser.set_defaults(run=_run, usage_error=_usage_error)


def _usage_error(options: argparse.Namespace) -> str | None:
    if options.base_model_relation and not options.confirm_base_model:
        return "only the author of the model can set --base-model-relation: it needs --confirm-base-model"
    if options.repo is None and (options.create_pr or options.confirm_base_model or options.bom is not None):
        return "--create-pr, --confirm-base-model and --bom change a card: name its repository before REPORT.json"
    if options.repo is not None and options.json:
        return "--json describes a badge; a card is printed as it is"
    return None


def _run(options: argparse.Namespace) -> int:
    return _write_badge(options) if options.repo is None else _write_card(options)


def _write_badge(options: argparse.Namespace) -> int:
    from mdir_hf.lineage.cards.badge import make_badge
    from mdir_hf.lineage.cards.badge_folder import read_report, write_badge

    report = read_report(options.report)
    badge = make_badge(report)
    snippet = badge.markdown("badge.svg", "report.json")
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


def _write_card(options: argparse.Namespace) -> int:
    from mdir_hf.lineage.bom.linking import linked_bom
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
        for path, content in proposal.files.items():
            _write(options.output / path, content)
        return 0
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
    from mdir_hf.writing import write_file, writing_into

    with writing_into(path.parent, path):
        write_file(path, content)
    remark(f"wrote {path}\n")
