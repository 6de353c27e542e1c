"""``mdir-hf compare A B``."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from mdir_hf.cli import arguments
from mdir_hf.cli.output import Ink, remark, say, width_of
from mdir_hf.cli.stopping import shown_if_stopped
from mdir_hf.errors import RemoteCodeRefusedError
from mdir_hf.report import HomologyReport


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``compare`` to the command line."""
    parser = commands.add_parser(
        "compare",
        help="compare two models",
        description="Compare two models. Each is owner/name, owner/name@revision, a Hub URL, a local folder or a file.",
    )
    parser.add_argument("reference", metavar="A")
    parser.add_argument("candidate", metavar="B")
    arguments.add_settings(parser)
    arguments.add_layers(parser)
    arguments.add_json(parser)
    arguments.add_output(parser, "write report.json, .md, .html and the figures there")
    arguments.add_fail_on(parser, "verdict", arguments.VERDICTS)
    reading = arguments.add_reading(parser)
    arguments.add_model(reading, whose="A")
    arguments.add_model(reading, prefix="candidate-", whose="B")
    arguments.add_computing(reading)
    parser.add_argument("--trust-remote-code", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compare, print, and return the exit status."""
    if options.trust_remote_code:
        raise RemoteCodeRefusedError(
            "mdir-hf reads tensors and tokenizer files as data and never runs a repository's code; "
            "leave --trust-remote-code out"
        )
    if options.output is not None:
        from mdir_hf.render.folder import check_save_folder

        check_save_folder(options.output)
    from mdir_hf.comparison.api import compare

    with shown_if_stopped(partial(_show, options=options)) as keep:
        report = compare(
            arguments.model_of(options, options.reference),
            arguments.model_of(options, options.candidate, prefix="candidate_"),
            reading=arguments.reading_of(options),
            settings=arguments.settings_of(options),
            listeners=arguments.listeners_of(options),
            on_found=keep,
        )
    _show(report, options)
    return arguments.exit_status(options, report.verdict.value)


def _show(report: HomologyReport, options: argparse.Namespace) -> None:
    if options.json:
        say(report.to_json() + "\n")
    else:
        from mdir_hf.render.text import text_of

        say(text_of(report, width=width_of(sys.stdout)) + "\n", ink=Ink[report.verdict.name])
    if options.output is not None:
        from mdir_hf.render.folder import save_report

        saved = save_report(report, options.output)
        without = f", without figures: {saved.without}" if saved.without else ""
        remark(f"saved in {options.output}{without}\n")
