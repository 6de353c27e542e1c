"""Arguments shared by several commands, and the objects built from them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mdir_hf.cli import early
from mdir_hf.cli.output import remark
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.errors import InputError
from mdir_hf.report import Level, Verdict
from mdir_hf.thresholds import ALPHA

if TYPE_CHECKING:
    from mdir_hf.comparison.plan import ReadPlan
    from mdir_hf.comparison.progress import Progress
    from mdir_hf.lineage.cards.verify_lineage import LineageCheck
    from mdir_hf.lineage.family import Family
    from mdir_hf.model.open import NamedModel, Reading

N = TypeVar("N", int, float)

EXIT_NAMED = 3
"""Exit status if ``--fail-on`` names the outcome, or ``--check`` finds a difference."""

MODEL = "owner/name, owner/name@revision, owner/name:Q4_K_M, owner/name/folder, a Hub URL, a folder or a file"
LEVELS = tuple(level.value for level in Level)
LEVEL_HELP = (
    "auto (default) stops as soon as it can; layers also compares sampled rows of every projection of every layer; "
    "paper also runs the paper's algorithms on whole matrices, which takes hours for models of 8B"
)
VERDICTS = tuple(verdict.value for verdict in Verdict)
SIZE_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def _number(convert: Callable[[str], N], check: Callable[[N], object], kind: str) -> Callable[[str], N]:
    def parse(text: str) -> N:
        try:
            value = convert(text)
            check(value)
        except InputError as exc:
            raise argparse.ArgumentTypeError(exc.message) from exc
        except ValueError as exc:
            raise argparse.ArgumentTypeError(f"{text!r} is not a {kind}") from exc
        return value

    return parse


alpha = _number(float, lambda value: Settings(alpha=value), "number")
seed = _number(int, lambda value: Settings(seed=value), "whole number")


def size(text: str) -> int:
    """Parse a number of bytes, such as 1000, 500M or 2GB."""
    digits = text.rstrip("kMGTB")
    unit = text[len(digits) :].removesuffix("B")
    try:
        value = float(digits) * SIZE_UNITS[unit]
    except (ValueError, KeyError) as exc:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; use a number of bytes, or 500M, 2G") from exc
    if value < 0:
        raise argparse.ArgumentTypeError(f"a size cannot be negative, got {text}")
    return int(value)


def add_fail_on(parser: argparse.ArgumentParser, kind: str, outcomes: tuple[str, ...]) -> None:
    """Add ``--fail-on``."""
    parser.add_argument(
        "--fail-on",
        metavar=kind.upper(),
        action="append",
        default=[],
        type=_names(kind, outcomes),
        help=f"exit with 3 on this {kind} ({', '.join(outcomes)}; repeatable, or comma-separated)",
    )


def exit_status(options: argparse.Namespace, *outcomes: str) -> int:
    """Return 3 if ``--fail-on`` names one of the outcomes, else 0."""
    outcome_names = {name for names in options.fail_on for name in names}
    return EXIT_NAMED if outcome_names.intersection(outcomes) else 0


def add_index(parser: argparse.ArgumentParser) -> None:
    """Add ``--index``."""
    parser.add_argument(
        "--index",
        metavar="INDEX",
        help="file made by `mdir-hf index`, local or as a URL on the Hub (default: MDIR_HF_ATLAS, "
        "else the small one shipped with the package)",
    )


def add_output(parser: argparse._ActionsContainer, what: str, *, metavar: str = "DIR", required: bool = False) -> None:
    """Add ``--output``."""
    parser.add_argument("--output", metavar=metavar, type=Path, required=required, help=what)
    parser.set_defaults(check_output=early.check_save_file if metavar == "FILE" else early.check_save_folder)


def add_bom(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--bom`` and ``--bom-version``."""
    parser.add_argument("--bom", metavar="FILE", type=Path, help=what)
    parser.add_argument(
        "--bom-version", choices=("1.6", "1.7"), default="1.6", help="version of CycloneDX to write (default 1.6)"
    )


def expect_writable_bom(options: argparse.Namespace) -> None:
    """Check that the bill of materials can be written, before any model is read.

    Raises:
        InputError: If it cannot be written, or cyclonedx-python-lib is not installed.
    """
    if options.bom is None:
        return
    from mdir_hf.lineage.bom import require_bom

    require_bom()
    early.check_save_file(options.bom)


def write_bom(options: argparse.Namespace, result: LineageCheck | Family, name: str) -> None:
    """Write a bill of materials if ``--bom`` was given."""
    if options.bom is None:
        return
    from mdir_hf.lineage.bom.documents import make_bom, read_model_facts
    from mdir_hf.writing import write_file, writing_into

    facts = read_model_facts(model_of(options, name), reading=reading_of(options))
    text = make_bom(result, facts, version=options.bom_version)
    with writing_into(options.bom.parent, options.bom):
        write_file(options.bom, text.encode())
    remark(f"written: {options.bom}\n")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output and nothing else")


def add_settings(parser: argparse.ArgumentParser, *, over: str = "") -> None:
    """Add options for the settings of a comparison; in the help text, ``over`` describes what alpha applies to."""
    parser.add_argument("--level", choices=LEVELS, default="auto", help=LEVEL_HELP)
    parser.add_argument("--alpha", type=alpha, default=ALPHA, help=f"level{over}, fixed in advance (default {ALPHA:g})")
    add_seed(parser, "every random choice except the sample of neurons")
    parser.add_argument(
        "--sample-seed",
        type=seed,
        metavar="SEED",
        help="read the sample of neurons of this seed; the verdict is then at most inconclusive "
        "(default: drawn once both models are open)",
    )


def add_describe(parser: argparse.ArgumentParser) -> None:
    """Add ``--describe``."""
    parser.add_argument(
        "--describe",
        action="store_true",
        help="read and describe the embeddings even if neurons settle the question (--output does so, too)",
    )


def add_seed(parser: argparse.ArgumentParser, of: str) -> None:
    """Add ``--seed``."""
    parser.add_argument("--seed", type=seed, default=0, help=f"seed of {of} (default 0)")


def add_voice(parser: argparse.ArgumentParser) -> None:
    """Add ``--quiet`` and ``--verbose``, which all commands have."""
    voice = parser.add_mutually_exclusive_group()
    voice.add_argument("-q", "--quiet", action="store_true", help="print only errors on standard error")
    voice.add_argument("-v", "--verbose", action="store_true", help="log each step, and tracebacks of errors")


def add_access(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options for using the Hub, and return their group."""
    reading = parser.add_argument_group("reading")
    reading.add_argument("--token", help="token for gated and private models (default: HF_TOKEN or the saved login)")
    reading.add_argument("--cache-dir", type=Path, help="the Hub cache to use (default: HF_HUB_CACHE)")
    return reading


def add_reading(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options for opening repositories, and return their group."""
    reading = add_access(parser)
    reading.add_argument("--local-files-only", action="store_true", help="do not use the network")
    reading.add_argument("--force-download", action="store_true", help="ignore the cache")
    return reading


def add_model(group: argparse._ArgumentGroup, *, prefix: str = "", whose: str = "the model") -> None:
    """Add options for reading a model, optionally with a prefix in their names."""
    group.add_argument(
        f"--{prefix}subfolder", default="", metavar="FOLDER", help=f"folder of {whose} in its repository"
    )
    group.add_argument(
        f"--{prefix}variant", help=f"read model.<variant>.safetensors of {whose}, or the GGUF file of that name"
    )
    group.add_argument(
        f"--{prefix}tokenizer", metavar="REPO", help=f"repository or folder with the vocabulary of {whose}"
    )
    group.add_argument(
        f"--{prefix}base",
        metavar="REPO@COMMIT",
        action="append",
        default=[],
        help=f"if {whose} is an adapter: its base, with the commit to read (repeatable)",
    )


def add_computing(group: argparse._ArgumentGroup) -> None:
    """Add options for the device and limits of a comparison."""
    group.add_argument(
        "--max-bytes",
        type=size,
        metavar="SIZE",
        help="hard limit on the bytes that a comparison reads, e.g. 500M or 2G",
    )
    group.add_argument("--max-memory", type=size, metavar="SIZE", help="leave out steps that need more memory")
    add_device(group)


def add_device(group: argparse._ActionsContainer) -> None:
    """Add ``--device``."""
    group.add_argument("--device", default="cpu", help="torch device for the matrix products, or auto (default cpu)")


def model_of(options: argparse.Namespace, name: str, *, prefix: str = "") -> NamedModel:
    """Return the model called ``name``, with its options from the command line."""
    from mdir_hf.model.open import NamedModel

    how = {key: getattr(options, prefix + key) for key in ("subfolder", "variant", "tokenizer")}
    return NamedModel(name, **how, bases=tuple(getattr(options, f"{prefix}base")))


def reading_of(options: argparse.Namespace) -> Reading:
    """Return the options for opening repositories."""
    from mdir_hf.model.open import Reading

    return Reading(
        token=options.token,
        cache_dir=options.cache_dir,
        local_files_only=getattr(options, "local_files_only", False),
        force_download=getattr(options, "force_download", False),
    )


def settings_of(options: argparse.Namespace) -> Settings:
    """Return the settings of a comparison."""
    return Settings(
        level=Level(options.level or Level.AUTO),
        alpha=options.alpha,
        seed=options.seed,
        device=options.device,
        max_bytes=options.max_bytes,
        max_memory_bytes=options.max_memory,
        sample_seed=getattr(options, "sample_seed", None),
    )


def listeners_of(options: argparse.Namespace) -> Listeners:
    """Return listeners that show a progress bar or, with ``--verbose``, log steps."""
    return Listeners(
        progress=not (options.quiet or options.verbose),
        on_plan=None if options.quiet else _print_plan,
        on_progress=_StepsTold() if options.verbose else None,
    )


class _StepsTold:
    """Logs the start of each step, with the number of bytes read so far."""

    def __init__(self) -> None:
        self._stage = ""
        self._began_s = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if progress.stage != self._stage:
            from mdir_hf.comparison.progress import LOOKED_FOR
            from mdir_hf.report import n_bytes_text

            self._stage = progress.stage
            step = LOOKED_FOR.get(progress.stage, progress.stage)
            bytes_text = n_bytes_text(progress.bytes_read)
            remark(f"{time.monotonic() - self._began_s:6.1f} s  {step}, {bytes_text} read so far\n")


def _print_plan(plan: ReadPlan) -> None:
    remark(f"{plan}\n")


def _names(kind: str, choices: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(","))
        for name in names:
            if name not in choices:
                raise argparse.ArgumentTypeError(f"{name!r} is not a {kind}; choose from {', '.join(choices)}")
        return names

    return parse
