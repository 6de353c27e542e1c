"""``mdir-hf align A B --output DIR``."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from mdir_hf.cli import arguments
from mdir_hf.cli.output import loading, remark, say
from mdir_hf.errors import CompleteOutputError, InputError

if TYPE_CHECKING:
    from tqdm import tqdm

DONE = {"layers": ("reconstructing", "layers"), "bytes": ("writing", "B")}


EXPLAINED = "1 - |B' - A|^2 / |B'|^2 over rows and channels with a partner"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``align`` command."""
    parser = commands.add_parser(
        "align",
        help="undo a disguise: write the weights of a related model in the basis of another",
        description="Reconstruct the transformation that takes A to B, and write the weights of B in the basis of A: "
        "channels, layers, heads and neurons in the places and axes that they have in A. The written model computes "
        "what B computes. It prints how much of its tensors A explains: 1 - |B' - A|^2 / |B'|^2; align.json in the "
        "output has all values. The models are compared first; a model that is not homologous is not written. After a "
        "kill, the same command continues from the last whole file.",
    )
    parser.add_argument("reference", metavar="A", help=arguments.MODEL)
    parser.add_argument("candidate", metavar="B")
    arguments.add_output(
        parser, "write config, tokenizer files, safetensors and the reconstruction there", required=True
    )
    arguments.add_settings(parser)
    arguments.add_json(parser)
    parser.add_argument(
        "--full-rotation", action="store_true", help="save a rotation of the residual stream in float64, however large"
    )
    parser.add_argument(
        "--restart", action="store_true", help="start again, and replace what this command wrote there before"
    )
    reading = arguments.add_reading(parser)
    arguments.add_model(reading, whose="A")
    arguments.add_model(reading, prefix="candidate-", whose="B")
    arguments.add_computing(reading)
    parser.set_defaults(run=run, check_files=_check_output)


def _check_output(options: argparse.Namespace) -> None:
    folder = options.output
    if folder.is_dir() and any(folder.iterdir()) and not (folder / ".mdir-hf").exists():
        raise InputError("it is not empty; name a folder that does not exist", subject=str(folder))


def run(options: argparse.Namespace) -> int:
    """Align the models, print the result, and return the exit status."""
    with loading():
        from mdir_hf.reconstruction.reconstruct import RESULT, align

    try:
        with AlignBar(is_wanted=not options.quiet) as bar:
            content = align(
                arguments.model_of(options, options.reference),
                arguments.model_of(options, options.candidate, prefix="candidate_"),
                options.output,
                settings=arguments.settings_of(options),
                reading=arguments.reading_of(options),
                full_rotation=options.full_rotation,
                restart=options.restart,
                on_part=bar.tell,
            ).to_dict()
        done = "saved in"
    except CompleteOutputError:
        content = json.loads((options.output / RESULT).read_bytes())  # its hash has just been checked
        content["output"] = str(options.output)
        done = "it is complete; --restart writes it again:"
    say(json.dumps(content, indent=2) + "\n" if options.json else _text(content, RESULT), is_prose=not options.json)
    remark(f"{done} {options.output}\n")
    return 0


class AlignBar:
    """A progress bar for layers and bytes, shown if standard error is a terminal."""

    def __init__(self, *, is_wanted: bool) -> None:
        from huggingface_hub.utils.tqdm import are_progress_bars_disabled

        self._is_shown = is_wanted and sys.stderr.isatty() and not are_progress_bars_disabled()
        self._stage = ""
        self._bar: tqdm[NoReturn] | None = None

    def __enter__(self) -> AlignBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def tell(self, stage: str, n_done: int, n_parts: int) -> None:
        """Show the progress of a stage."""
        if not self._is_shown:
            return
        from tqdm import tqdm

        if stage != self._stage:
            if self._bar is not None:
                self._bar.close()
            words, unit = DONE[stage]
            self._stage = stage
            self._bar = tqdm(
                total=n_parts, desc=words, unit=unit, unit_scale=stage == "bytes", file=sys.stderr, leave=False
            )
        assert self._bar is not None
        self._bar.update(n_done - self._bar.n)


N_WORST = 10


def _text(content: Mapping[str, Any], file: str) -> str:
    explained = content["explained"]
    shares = {name: share for name, share in explained.items() if share is not None}
    lines = [f"{content['candidate']} in the basis of {content['reference']}", ""]
    lines += [*content["description"], *content["notes"], ""]
    lines.append(f"share of a tensor that the reference explains, {EXPLAINED}:")
    if shares:
        lines.append(
            f"  smallest {min(shares.values()):.6f}, median {median(shares.values()):.6f}, of {len(shares)} tensors"
        )
    if without := [name for name in explained if name not in shares]:
        more = f" and {len(without) - 3} more" if len(without) > 3 else ""
        lines.append(f"  {len(without)} without a counterpart, not compared: {', '.join(without[:3])}{more}")
    worst = sorted(sorted(shares, key=shares.__getitem__)[:N_WORST], key=_in_order)
    lines += [f"the {len(worst)} smallest:", *(f"  {shares[name]:.6f}  {name}" for name in worst)] if shares else []
    return "\n".join([*lines, f"all: {file}"]) + "\n"


def _in_order(name: str) -> list[tuple[int, str]]:
    """Sort key that puts layer 2 before layer 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]
