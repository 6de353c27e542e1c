"""``mdir-hf compare A B`` and ``mdir-hf inspect REPO``."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from mdir_hf.cli import arguments
from mdir_hf.cli.align import AlignBar
from mdir_hf.cli.output import Ink, loading, remark, say, shown_if_stopped, width_of
from mdir_hf.comparison.settings import Settings
from mdir_hf.errors import AnatomyError, CheckpointError, ReconstructionError, RemoteCodeRefusedError, one_line
from mdir_hf.report import HomologyReport, SettledBy, Verdict


def add_compare(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``compare`` command."""
    parser = commands.add_parser(
        "compare",
        help="do two models share weights? --level layers: in which layers? --check repeats a report",
        description="Compare two models. Each is owner/name, owner/name@revision, a Hub URL, a local folder or a file.",
    )
    parser.add_argument("reference", metavar="A")
    parser.add_argument("candidate", metavar="B")
    arguments.add_settings(parser)
    arguments.add_describe(parser)
    parser.add_argument("--details", action="store_true", help="print everything that was measured")
    arguments.add_json(parser)
    output = parser.add_mutually_exclusive_group()
    arguments.add_output(output, "write report.json, .md, .html and the figures to this folder")
    output.add_argument(
        "--check",
        metavar="REPORT.json",
        type=Path,
        help="compare again with the level, alpha, seeds and sample of this report, and say whether the verdict and "
        "every number are the same; exit with 3 if not",
    )
    parser.add_argument(
        "--reconstruction",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="with --output: also save the transformation from A to B if they are homologous; this reads all layers "
        "(default: if both models are on this disk)",
    )
    arguments.add_fail_on(parser, "verdict", arguments.VERDICTS)
    reading = arguments.add_reading(parser)
    arguments.add_model(reading, whose="A")
    arguments.add_model(reading, prefix="candidate-", whose="B")
    arguments.add_computing(reading)
    parser.add_argument("--trust-remote-code", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(run=_run_compare, refuse=parser.error)


def _run_compare(options: argparse.Namespace) -> int:
    if options.trust_remote_code:
        raise RemoteCodeRefusedError(
            "mdir-hf reads tensors and tokenizer files as data and never runs code from a repository; "
            "leave out --trust-remote-code"
        )
    if options.check is not None:
        return _run_check(options)
    with loading():
        from mdir_hf.comparison.api import compare

    with shown_if_stopped(partial(_show, options=options)) as keep:
        report = compare(
            arguments.model_of(options, options.reference),
            arguments.model_of(options, options.candidate, prefix="candidate_"),
            reading=arguments.reading_of(options),
            settings=replace(arguments.settings_of(options), describes=options.describe or options.output is not None),
            listeners=arguments.listeners_of(options),
            on_found=keep,
        )
    _show(report, options)
    if options.output is not None and report.verdict is Verdict.HOMOLOGOUS and _is_reconstructed(report, options):
        _save_reconstruction(report, options)
    return arguments.exit_status(options, report.verdict.value)


def _run_check(options: argparse.Namespace) -> int:
    for name in ("level", "alpha", "seed", "sample_seed"):
        if getattr(options, name) != getattr(Settings(), name):
            options.refuse(f"argument --check: not allowed with --{name.replace('_', '-')}, which the report states")
    from mdir_hf.lineage.cards.badge_folder import read_report

    report = read_report(options.check)
    with loading():
        from mdir_hf.comparison.check import check_report

    check = check_report(
        report,
        arguments.model_of(options, options.reference),
        arguments.model_of(options, options.candidate, prefix="candidate_"),
        reading=arguments.reading_of(options),
        listeners=arguments.listeners_of(options),
        device=options.device,
        max_bytes=options.max_bytes,
        max_memory_bytes=options.max_memory,
    )
    say(json.dumps(check.to_dict(), indent=2) + "\n" if options.json else f"{check}\n", is_prose=not options.json)
    return arguments.exit_status(options, report.verdict.value) if check.is_same else arguments.EXIT_NAMED


def _is_reconstructed(report: HomologyReport, options: argparse.Namespace) -> bool:
    if report.settled_by is SettledBy.IDENTICAL_FILES:
        return False
    if options.reconstruction is None:
        return all(Path(name).exists() for name in (options.reference, options.candidate))
    return bool(options.reconstruction)


def _save_reconstruction(report: HomologyReport, options: argparse.Namespace) -> None:
    from mdir_hf.reconstruction.reconstruct import reconstruct
    from mdir_hf.reconstruction.storage import save_reconstruction

    try:
        with AlignBar(is_wanted=not options.quiet) as bar:
            reconstruction = reconstruct(
                arguments.model_of(options, options.reference),
                arguments.model_of(options, options.candidate, prefix="candidate_"),
                report=report,
                settings=arguments.settings_of(options),
                reading=arguments.reading_of(options),
                on_part=bar.tell,
            )
    except (AnatomyError, CheckpointError, ReconstructionError) as exc:
        remark(f"saved without the reconstruction: {one_line(exc)}\n")
        return
    index, _ = save_reconstruction(reconstruction, options.output)
    remark(f"saved the reconstruction as {index}\n")


def _show(report: HomologyReport, options: argparse.Namespace) -> None:
    if options.json:
        say(report.to_json() + "\n")
    else:
        from mdir_hf.render.text import details_of, text_of

        render = details_of if options.details else text_of
        say(render(report, width=width_of(sys.stdout)) + "\n", ink=Ink[report.verdict.name])
    if options.output is not None:
        from mdir_hf.render.folder import save_report

        saved_report = save_report(report, options.output)
        without = f", without figures: {saved_report.without}" if saved_report.without else ""
        remark(f"saved in {options.output}{without}\n")


def add_inspect(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``inspect`` command."""
    parser = commands.add_parser(
        "inspect",
        help="how is a model read, and which parts are compared?",
        description="Show how a comparison sees one model: architecture, roles in each layer, vocabulary, "
        "quantisation, and planned reads. Reads no weights.",
    )
    parser.add_argument("model", metavar="REPO", help=arguments.MODEL)
    arguments.add_json(parser)
    parser.add_argument(
        "--all-headers",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="read the header of every weight file: checks all shapes, and counts the bytes that layers would need "
        "(default: if there are at most 8 files)",
    )
    arguments.add_model(arguments.add_reading(parser))
    parser.set_defaults(run=_run_inspect)


def _run_inspect(options: argparse.Namespace) -> int:
    with loading():
        from mdir_hf.comparison.inspection import inspect_model

    model = arguments.model_of(options, options.model)
    inspection = inspect_model(
        model,
        reading=arguments.reading_of(options),
        all_headers=options.all_headers,
        listeners=arguments.listeners_of(options),
    )
    say((inspection.to_json() if options.json else str(inspection)) + "\n", is_prose=not options.json)
    return 0
