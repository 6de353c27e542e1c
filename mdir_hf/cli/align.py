"""``mdir-hf align A B --output DIR``."""

from __future__ import annotations

import argparse
import json
import sys
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from mdir_hf.cli import arguments
from mdir_hf.cli.output import loading, remark, say

if TYPE_CHECKING:
    from tqdm import tqdm

    from mdir_hf.reconstruction.reconstruct import Aligned

DONE = {"layers": ("reconstructing", "layers"), "bytes": ("writing", "B")}


EXPLAINED = "1 - |B' - A|^2 / |B'|^2 over rows and channels with a partner"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``align`` command."""
    parser = commands.add_parser(
        "align",
        help="write the weights of a related model in the basis of another",
        description="Reconstruct the transformation that takes A to B, and write the weights of B in the basis of A: "
        "channels, layers, heads and neurons in the places and axes that they have in A. The written model computes "
        "what B computes. For each tensor it prints how much of it A explains: 1 - |B' - A|^2 / |B'|^2. The models are "
        "compared first; a model that is not homologous is not written.",
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
    reading = arguments.add_reading(parser)
    arguments.add_model(reading, whose="A")
    arguments.add_model(reading, prefix="candidate-", whose="B")
    arguments.add_computing(reading)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Align the models, print and save the result, and return the exit status."""
    with loading():
        from mdir_hf.reconstruction.reconstruct import align
        from mdir_hf.reconstruction.storage import save_reconstruction

    with AlignBar(is_wanted=not options.quiet) as bar:
        aligned = align(
            arguments.model_of(options, options.reference),
            arguments.model_of(options, options.candidate, prefix="candidate_"),
            options.output,
            settings=arguments.settings_of(options),
            reading=arguments.reading_of(options),
            on_part=bar.tell,
        )
    save_reconstruction(aligned.reconstruction, options.output, full_rotation=options.full_rotation)
    say(_json(aligned) if options.json else _text(aligned))
    remark(f"saved in {options.output}\n")
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


def _text(aligned: Aligned) -> str:
    from mdir_hf.reconstruction.records import describe

    reconstruction = aligned.reconstruction
    lines = [f"{reconstruction.candidate} in the basis of {reconstruction.reference}", ""]
    lines += [*describe(reconstruction), *aligned.written.notes]
    lines += ["", f"share of each tensor that the reference explains, {EXPLAINED}:"]
    width = max((len(tensor.name) for tensor in aligned.written.explained), default=0)
    for tensor in aligned.written.explained:
        share = "not compared" if tensor.share is None else f"{tensor.share:.6f}"
        lines.append(f"  {tensor.name:<{width}}  {share}")
    return "\n".join(lines) + "\n"


def _json(aligned: Aligned) -> str:
    reconstruction = aligned.reconstruction
    content = {
        "schema": "mdir-hf/align/1",
        "reference": reconstruction.reference,
        "candidate": reconstruction.candidate,
        "output": str(aligned.written.folder),
        "n_bytes": aligned.written.n_bytes,
        "log10_p": aligned.report.log10_p,
        "stream": {
            "kind": reconstruction.stream.outer.kind,
            "scale": reconstruction.stream.scale,
            "residual": reconstruction.stream.residual,
        },
        "layers": [list(pair) for pair in reconstruction.layer_map],
        "explained": {tensor.name: tensor.share for tensor in aligned.written.explained},
        "notes": list(aligned.written.notes),
    }
    return json.dumps(content, indent=2) + "\n"
