"""``mdir-hf card REPO REPORT.json``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mdir_hf.cli import arguments
from mdir_hf.cli.output import remark, say, say_bytes
from mdir_hf.lineage.cards import RELATIONS

if TYPE_CHECKING:
    from mdir_hf.lineage.cards.card import CardProposal


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``card`` to the command line."""
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
    parser.set_defaults(run=run, refuse=parser.error)


def run(options: argparse.Namespace) -> int:
    """Write the card, show it or propose it."""
    if options.base_model_relation and not options.confirm_base_model:
        options.refuse("only the author of the model can set --base-model-relation: it needs --confirm-base-model")
    from mdir_hf.lineage.bom.linking import linked_bom
    from mdir_hf.lineage.cards.card import propose_card
    from mdir_hf.lineage.cards.printable import unquoted
    from mdir_hf.lineage.cards.report_file import read_report

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
    remark(f"nothing was sent; the card links to {others}, which --create-pr would add as well\n")
    return 0


def _create_pull_request(proposal: CardProposal, token: str | None) -> int:
    if proposal.is_unchanged:
        return 0
    opened = proposal.open_pull_request(token=token)
    for note in opened.notes:
        remark(f"note: {note}\n")
    say(f"{opened.url}\n")
    return 0


def _write(path: Path, content: bytes) -> None:
    from mdir_hf.errors import InputError
    from mdir_hf.render.folder import write_file

    try:
        write_file(path, content)
    except OSError as exc:
        raise InputError(f"cannot write {path}: {exc.strerror}") from exc
    remark(f"wrote {path}\n")
