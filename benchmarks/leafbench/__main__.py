"""The command line: ``python -m benchmarks.leafbench plan|run|report``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.leafbench.planning import plan_suite
from benchmarks.leafbench.reporting import report_markdown, report_suite
from benchmarks.leafbench.running import RunSettings, run_suite
from benchmarks.leafbench.suites import SUITES
from mdir_hf.errors import MdirError
from mdir_hf.model.open import Reading
from mdir_hf.report import Level


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit status: 0, or 1 for an error that is said in one line."""
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except MdirError as exc:
        sys.stderr.write(f"error: {exc}\n")
        return 1
    return 0


def _plan(options: argparse.Namespace) -> None:
    for name in options.suite:
        suite = SUITES[name]()
        plan = plan_suite(
            suite.part(options.shard),
            level=options.level,
            n_tokens=options.tokens,
            bytes_per_s=options.megabytes_per_s * 1e6,
            reading=_opening(options),
        )
        print(f"{name}\n{plan}\n", flush=True)


def _run(options: argparse.Namespace) -> None:
    settings = RunSettings(
        level=options.level, seed=options.seed, n_tokens=options.tokens, shard=options.shard, reading=_opening(options)
    )
    for name in options.suite:
        for found in run_suite(SUITES[name](), options.out / name, settings):
            said = f"error: {found.error}" if found.error else f"{found.verdict}, log10 p {found.log10_p:.1f}"
            print(f"{found.reference} | {found.candidate}: {said}", flush=True)


def _report(options: argparse.Namespace) -> None:
    for name in options.suite:
        report = report_suite(SUITES[name](), [folder / name for folder in options.folders])
        print(json.dumps(report, indent=1) if options.json else report_markdown(report), flush=True)
        if options.save is not None:
            options.save.mkdir(parents=True, exist_ok=True)
            text = json.dumps(report, indent=1) + "\n"
            (options.save / f"leafbench-{name}.json").write_text(text, encoding="utf-8")


def _opening(options: argparse.Namespace) -> Reading:
    return Reading(options.token, options.cache_dir, options.local_files_only)


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--suite", action="append", choices=sorted(SUITES), required=True, help="which (repeatable)")
    reading = argparse.ArgumentParser(add_help=False)
    reading.add_argument(
        "--level", choices=tuple(map(str, Level)), default="screen", help="how far to look (default screen)"
    )
    reading.add_argument("--tokens", type=int, default=2048, help="rows read of every model at level screen")
    reading.add_argument("--shard", type=_shard, default=(0, 1), metavar="I/N", help="part I of N, from 0")
    reading.add_argument("--token", help="token for gated models (default: HF_TOKEN or the saved login)")
    reading.add_argument("--cache-dir", type=Path, help="the Hub cache to use")
    reading.add_argument("--local-files-only", action="store_true", help="use no network")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leafbench", description=__doc__)
    commands = parser.add_subparsers(required=True)
    plan = commands.add_parser("plan", parents=[common, reading], help="bytes, memory and time, from headers alone")
    plan.add_argument("--megabytes-per-s", type=float, default=20.0, help="rate of the network (default 20)")
    plan.set_defaults(command=_plan)
    run = commands.add_parser("run", parents=[common, reading], help="compare; goes on where it was stopped")
    run.add_argument("--out", type=Path, required=True, metavar="DIR", help="where results go; one for each shard")
    run.add_argument("--seed", type=int, default=0)
    run.set_defaults(command=_run)
    report = commands.add_parser("report", parents=[common], help="metrics and decisions of what was run")
    report.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="the --out of every shard")
    report.add_argument("--json", action="store_true")
    report.add_argument("--save", type=Path, metavar="DIR", help="write leafbench-SUITE.json there")
    report.set_defaults(command=_report)
    return parser


def _shard(text: str) -> tuple[int, int]:
    at, slash, n_shards = text.partition("/")
    if not slash or not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in (at, n_shards)):
        raise argparse.ArgumentTypeError(f"{text!r} is no shard; write 0/4 for the first of four")
    return int(at), int(n_shards)


if __name__ == "__main__":
    sys.exit(main())
