"""``mdir-hf compare A B``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mdir_hf.cli.arguments import LEVELS, VERDICTS, add_fail_on, alpha, exit_status, print_plan, size
from mdir_hf.errors import RemoteCodeRefusedError


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``compare`` to the command line."""
    parser = commands.add_parser(
        "compare",
        help="compare two models",
        description="Compare two models. Each is owner/name, owner/name@revision, a Hub URL, a local folder or a file.",
    )
    parser.add_argument("reference", metavar="A")
    parser.add_argument("candidate", metavar="B")
    parser.add_argument("--level", choices=LEVELS, default="auto", help="auto (default) stops as soon as it can")
    parser.add_argument("--alpha", type=alpha, default=1e-10, help="level, fixed before looking (default 1e-10)")
    parser.add_argument("--seed", type=int, default=0, help="seed of every random choice (default 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output, nothing else")
    parser.add_argument("--save", metavar="DIR", type=Path, help="write report.json, .md, .html and the figures there")
    add_fail_on(parser, "verdict", VERDICTS)
    parser.add_argument("--quiet", action="store_true", help="no plan and no progress on standard error")
    reading = parser.add_argument_group("reading")
    reading.add_argument("--token", help="token for gated and private models (default: HF_TOKEN or the saved login)")
    reading.add_argument("--cache-dir", type=Path, help="the Hub cache to use (default: HF_HUB_CACHE)")
    reading.add_argument("--local-files-only", action="store_true", help="use no network")
    reading.add_argument("--force-download", action="store_true", help="do not use what is cached")
    reading.add_argument("--subfolder", default="", help="folder of A's repository that holds the model")
    reading.add_argument("--candidate-subfolder", default="", help="the same for B")
    reading.add_argument("--variant", help="read A's model.<variant>.safetensors, or the GGUF file of that name")
    reading.add_argument("--candidate-variant", help="the same for B")
    reading.add_argument("--tokenizer", metavar="REPO", help="repository or folder to read A's vocabulary from")
    reading.add_argument("--candidate-tokenizer", metavar="REPO", help="the same for B")
    reading.add_argument("--base", metavar="REPO@COMMIT", action="append", default=[],
                         help="read what lies under A, an adapter, at this commit (repeatable)")  # fmt: skip
    reading.add_argument("--candidate-base", metavar="REPO@COMMIT", action="append", default=[],
                         help="the same for B")  # fmt: skip
    reading.add_argument("--max-bytes", type=size, metavar="SIZE", help="hard cap on what is read, e.g. 500M or 2G")
    reading.add_argument("--max-memory", type=size, metavar="SIZE", help="refuse what would need more memory")
    reading.add_argument("--device", default="cpu", help="torch device for the matrix products, or auto (default cpu)")
    parser.add_argument("--trust-remote-code", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compare, print, and return the exit status."""
    if options.trust_remote_code:
        raise RemoteCodeRefusedError(
            "mdir-hf reads tensors and tokenizer files as data and never runs a repository's code; "
            "leave --trust-remote-code out"
        )
    if options.save is not None:
        from mdir_hf.saving import check_save_folder

        check_save_folder(options.save)
    from mdir_hf.checker import HomologyChecker

    checker = HomologyChecker.from_pretrained(
        options.reference,
        token=options.token,
        cache_dir=options.cache_dir,
        local_files_only=options.local_files_only,
        force_download=options.force_download,
        subfolder=options.subfolder,
        variant=options.variant,
        tokenizer=options.tokenizer,
        bases=options.base,
        device=options.device,
        alpha=options.alpha,
        seed=options.seed,
    )
    report = checker.compare(
        options.candidate,
        level=options.level,
        subfolder=options.candidate_subfolder,
        variant=options.candidate_variant,
        tokenizer=options.candidate_tokenizer,
        bases=options.candidate_base,
        max_bytes=options.max_bytes,
        max_memory_bytes=options.max_memory,
        progress=not options.quiet,
        on_plan=None if options.quiet else print_plan,
    )
    sys.stdout.write((report.to_json() if options.json else str(report)) + "\n")
    sys.stdout.flush()
    if options.save is not None:
        from mdir_hf.saving import save_report

        saved = save_report(report, options.save)
        without = f", without figures: {saved.without}" if saved.without else ""
        sys.stderr.write(f"saved in {options.save}{without}\n")
    return exit_status(options, report.verdict.value)
