"""``mdir-hf inspect REPO``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``inspect`` to the command line."""
    parser = commands.add_parser(
        "inspect",
        help="say what a comparison sees of one model",
        description="Say what a comparison sees of one model: architecture, roles found in each layer, vocabulary, "
        "quantisation, and what it would read. Reads no weights.",
    )
    parser.add_argument("model", metavar="REPO", help="owner/name, owner/name@revision, a Hub URL, a folder or a file")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output, nothing else")
    parser.add_argument(
        "--all-headers",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="read the header of every weight file: checks every shape, and counts what the layers would cost "
        "(default: where there are at most 8 files)",
    )
    parser.add_argument("--subfolder", default="", help="folder of the repository that holds the model")
    parser.add_argument("--variant", help="fp16 reads model.fp16.safetensors")
    parser.add_argument("--tokenizer", metavar="REPO", help="repository or folder to read the vocabulary from")
    parser.add_argument("--token", help="token for gated and private models (default: the stored one)")
    parser.add_argument("--cache-dir", type=Path, help="the Hub cache to use")
    parser.add_argument("--local-files-only", action="store_true", help="use no network")
    parser.add_argument("--force-download", action="store_true", help="do not use what is cached")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Inspect, print, and return the exit status."""
    from mdir_hf.inspection import inspect_model

    found = inspect_model(
        options.model,
        token=options.token,
        cache_dir=options.cache_dir,
        local_files_only=options.local_files_only,
        force_download=options.force_download,
        subfolder=options.subfolder,
        variant=options.variant,
        tokenizer=options.tokenizer,
        all_headers=options.all_headers,
    )
    sys.stdout.write((found.to_json() if options.json else str(found)) + "\n")
    return 0
