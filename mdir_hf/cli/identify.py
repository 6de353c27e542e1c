"""``mdir-hf identify REPO --index FILE`` and ``mdir-hf index FILE REPO …``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from mdir_hf.cli.arguments import LEVELS, alpha
from mdir_hf.cli.model_list import add_list_arguments, listed_models
from mdir_hf.errors import InputError

LARGEST_INDEX_BYTES = 4 << 30
"""Bound on an index that is downloaded: enough for twenty thousand bases."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``identify`` and ``index`` to the command line."""
    parser = commands.add_parser(
        "identify",
        help="find the base models of an index that a model shares ancestry with",
        description="Search an index of base models for those that a model shares weight ancestry with, and compare "
        "the model with those that are found.",
    )
    parser.add_argument("model", metavar="REPO", help="owner/name, owner/name@revision, a Hub URL, a folder or a file")
    parser.add_argument("--index", required=True, metavar="FILE|URL",
                        help="file that `mdir-hf index` made, here or the address of one on the Hub")  # fmt: skip
    parser.add_argument("--top", type=int, default=5, help="how many bases are tested (default 5)")
    parser.add_argument(
        "--alpha", type=alpha, default=1e-10, help="level of significance over all bases (default 1e-10)"
    )
    parser.add_argument("--level", choices=LEVELS, default="auto", help="level of the comparisons (default auto)")
    parser.add_argument("--no-confirm", action="store_true", help="search only; compare nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output, nothing else")
    _add_reading(parser)
    parser.set_defaults(run=run_identify)

    parser = commands.add_parser(
        "index",
        help="build or extend an index of base models",
        description="Read a few rows of each base model into an index file. An index that exists is extended. A base "
        "that it holds at the same commit is not read again; at another commit it is replaced.",
    )
    parser.add_argument("index", metavar="FILE", type=Path, help="the index")
    add_list_arguments(parser)
    _add_reading(parser)
    parser.set_defaults(run=run_index)


def run_identify(options: argparse.Namespace) -> int:
    """Search, confirm, print, and return the exit status."""
    from mdir_hf.index.base_index import BaseIndex
    from mdir_hf.index.identify import identify

    found = identify(
        options.model,
        BaseIndex.load(_index_path(options)),
        top=options.top,
        confirm=not options.no_confirm,
        alpha=options.alpha,
        level=options.level,
        options=_reading(options),
    )
    sys.stdout.write((found.to_json() if options.json else str(found)) + "\n")
    return 0


def _index_path(options: argparse.Namespace) -> Path:
    if not options.index.startswith(("http://", "https://")):
        return Path(options.index)
    from mdir_hf.hub.hub_file import fetch_hub_file

    return fetch_hub_file(
        options.index, max_bytes=LARGEST_INDEX_BYTES, token=options.token, cache_dir=options.cache_dir
    )[0]


def run_index(options: argparse.Namespace) -> int:
    """Add bases to an index, and return the exit status."""
    from mdir_hf.index.base_index import BaseIndex
    from mdir_hf.index.building import extend_index

    names = listed_models(options)
    if not names:
        raise InputError("name the base models, or a list of them with --from, --author or --collection")
    known = BaseIndex.load(options.index) if options.index.exists() else None

    def said(name: str, outcome: str) -> None:
        sys.stderr.write(f"{outcome}: {name}\n" if outcome in ("added", "known") else f"not added: {outcome}\n")

    index, n_failed = extend_index(known, names, options.index, on_model=said, options=_reading(options))
    if n_failed == len(names):
        raise InputError("none of the models could be added; the index is as it was", subject=str(options.index))
    sys.stdout.write(f"{options.index}: {len(index)} base models, {index.n_bytes / 1e6:.1f} MB of rows\n")
    return 0


def _add_reading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--token", help="token for gated and private models (default: HF_TOKEN or the saved login)")
    parser.add_argument("--cache-dir", type=Path, help="the Hub cache to use (default: HF_HUB_CACHE)")
    parser.add_argument("--local-files-only", action="store_true", help="use no network")


def _reading(options: argparse.Namespace) -> dict[str, Any]:
    return {"token": options.token, "cache_dir": options.cache_dir, "local_files_only": options.local_files_only}
