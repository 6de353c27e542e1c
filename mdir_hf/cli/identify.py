"""``mdir-hf identify REPO --index FILE`` and ``mdir-hf index FILE REPO …``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from mdir_hf.cli.arguments import LEVELS, alpha
from mdir_hf.errors import InputError, MdirError

LARGEST_INDEX_BYTES = 4 << 30
"""Of an index that is downloaded: room for twenty thousand bases."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``identify`` and ``index`` to the command line."""
    parser = commands.add_parser(
        "identify",
        help="find the base models of an index that a model shares ancestry with",
        description="Search an index of base models for those that a model shares weight ancestry with, and confirm "
        "what is found by comparing the models themselves.",
    )
    parser.add_argument("model", metavar="REPO", help="owner/name, owner/name@revision, a Hub URL, a folder or a file")
    parser.add_argument("--index", required=True, metavar="FILE|URL",
                        help="file that `mdir-hf index` made, here or the address of one on the Hub")  # fmt: skip
    parser.add_argument("--top", type=int, default=5, help="how many bases are looked at closely (default 5)")
    parser.add_argument("--alpha", type=alpha, default=1e-10, help="level over all bases (default 1e-10)")
    parser.add_argument("--level", choices=LEVELS, default="auto", help="level of the comparisons (default auto)")
    parser.add_argument("--no-confirm", action="store_true", help="search only; compare nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output, nothing else")
    _add_reading(parser)
    parser.set_defaults(run=run_identify)

    parser = commands.add_parser(
        "index",
        help="build or extend an index of base models",
        description="Read a few rows of each base model into an index file. An index that exists is extended, and a "
        "base of the same name replaced.",
    )
    parser.add_argument("index", metavar="FILE", type=Path, help="the index")
    parser.add_argument("models", metavar="REPO", nargs="+", help="base models")
    _add_reading(parser)
    parser.set_defaults(run=run_index)


def run_identify(options: argparse.Namespace) -> int:
    """Search, confirm, print, and return the exit status."""
    from mdir_hf.survey.identify import identify
    from mdir_hf.survey.index import BaseIndex

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
    from mdir_hf.comparison.model import Model
    from mdir_hf.hub import open_repository
    from mdir_hf.survey.index import BaseIndex, choose_index_tokens

    known = BaseIndex.load(options.index) if options.index.exists() else None
    opened: list[Model] = []
    n_failed = 0
    for name in options.models:
        try:
            model = Model(open_repository(name, **_reading(options)))
            if model.vocabulary is None:
                raise InputError("it has no tokenizer files", subject=name)
            opened.append(model)
        except MdirError as exc:
            n_failed += 1
            sys.stderr.write(f"not added: {' '.join(str(exc).split())}\n")
    if known is None:
        known = BaseIndex(choose_index_tokens([model.vocabulary for model in opened if model.vocabulary is not None]))
    for model in opened:
        try:
            base = known.add(model)
            sys.stderr.write(f"added: {model.label}, {len(base.tokens)} rows\n")
        except MdirError as exc:
            n_failed += 1
            sys.stderr.write(f"not added: {' '.join(str(exc).split())}\n")
    if n_failed == len(options.models):
        raise InputError("none of the models could be added; the index is as it was", subject=str(options.index))
    known.save(options.index)
    sys.stdout.write(f"{options.index}: {len(known)} base models, {known.n_bytes / 1e6:.1f} MB of rows\n")
    return 0


def _add_reading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--token", help="token for gated and private models (default: HF_TOKEN or the saved login)")
    parser.add_argument("--cache-dir", type=Path, help="the Hub cache to use (default: HF_HUB_CACHE)")
    parser.add_argument("--local-files-only", action="store_true", help="use no network")


def _reading(options: argparse.Namespace) -> dict[str, Any]:
    return {"token": options.token, "cache_dir": options.cache_dir, "local_files_only": options.local_files_only}
