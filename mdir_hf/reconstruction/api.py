"""The entry points: reconstruct the transformation between two models, and align one with the other."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mdir_hf.comparison.options import named
from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.run import compare_models
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.errors import ReconstructionError
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.open import NamedModel, Reading, open_both
from mdir_hf.model.opened import Model
from mdir_hf.processor import available_device
from mdir_hf.reconstruction.fit import fit_reconstruction
from mdir_hf.reconstruction.records import Reconstruction
from mdir_hf.reconstruction.write import Written, check_empty, write_model
from mdir_hf.report import HomologyReport, Verdict

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OnPart = Callable[[str, int, int], None]
"""Takes ``layers`` or ``bytes``, how many are done, and how many there are."""


@dataclass(frozen=True, slots=True)
class Aligned:
    """An aligned model.

    Attributes:
        report: The comparison that came first.
        reconstruction: The transformation.
        written: The files, and how much of each tensor the reference explains.
    """

    report: HomologyReport
    reconstruction: Reconstruction
    written: Written


def reconstruct(
    reference: str | os.PathLike[str] | PreTrainedModel | NamedModel,
    candidate: str | os.PathLike[str] | PreTrainedModel | NamedModel,
    *,
    report: HomologyReport | None = None,
    settings: Settings = Settings(),
    reading: Reading = Reading(),
    on_part: OnPart | None = None,
) -> Reconstruction:
    """Reconstruct the transformation that takes one model to another.

    Args:
        reference: One model, as in :func:`mdir_hf.compare`.
        candidate: The other.
        report: The report of a comparison of the two; None: they are compared first.
        settings: Settings of that comparison; the seed is also used for the reconstruction.
        reading: How repositories are opened.
        on_part: Told of each layer.

    Returns:
        The transformation. Reads all layers of both models.

    Raises:
        ReconstructionError: If the models are not homologous, or nothing relates their residual streams.
        MdirError: If the files cannot be read.
    """
    ledger = IoLedger()
    with ledger.limited(settings.max_bytes):
        models, report = _compared(reference, candidate, report, settings, reading, ledger)
        return _fitted(models, report, settings, on_part)


def align(
    reference: str | os.PathLike[str] | PreTrainedModel | NamedModel,
    candidate: str | os.PathLike[str] | PreTrainedModel | NamedModel,
    output: str | os.PathLike[str],
    *,
    report: HomologyReport | None = None,
    settings: Settings = Settings(),
    reading: Reading = Reading(),
    on_part: OnPart | None = None,
) -> Aligned:
    """Write the candidate's weights in the reference's basis; the model computes the same logits.

    Args:
        reference: One model, as in :func:`mdir_hf.compare`.
        candidate: The other.
        output: Folder of the aligned model; it has to be empty or new.
        report: The report of a comparison of the two; None: they are compared first.
        settings: Settings of that comparison.
        reading: How repositories are opened.
        on_part: Told of each layer that is reconstructed and of bytes that are written.

    Returns:
        The report, the transformation, and how much of each aligned tensor the reference explains.

    Raises:
        ReconstructionError: If the models are not homologous, or the candidate cannot be aligned exactly.
        MdirError: If the files cannot be read or written.
    """
    check_empty(Path(output))
    ledger = IoLedger()
    with ledger.limited(settings.max_bytes):
        models, report = _compared(reference, candidate, report, settings, reading, ledger)
        found = _fitted(models, report, settings, on_part)
        written = write_model(
            models[1],
            found,
            Path(output),
            reference=models[0],
            on_bytes=None if on_part is None else lambda done, total: on_part("bytes", done, total),
        )
    return Aligned(report, found, written)


def _compared(
    reference: str | os.PathLike[str] | PreTrainedModel | NamedModel,
    candidate: str | os.PathLike[str] | PreTrainedModel | NamedModel,
    report: HomologyReport | None,
    settings: Settings,
    reading: Reading,
    ledger: IoLedger,
) -> tuple[tuple[Model, Model], HomologyReport]:
    """Open two models, and compare them unless that was done."""
    first, second = open_both(named(reference, {}), named(candidate, {}), reading, ledger, settings.level)
    if report is None:
        watch = Watch(ledger, Listeners(progress=False), from_start=True)
        with watch.listening():
            device = available_device(settings.device)
            report = compare_models(first, second, replace(settings, device=device), watch)
    if report.verdict is not Verdict.HOMOLOGOUS:
        raise ReconstructionError(
            f"{report.headline}; only homologous models have a transformation to reconstruct "
            "(--level layers looks at more)",
            subject=f"{first.label} and {second.label}",
        )
    return (first, second), report


def _fitted(
    models: tuple[Model, Model], report: HomologyReport, settings: Settings, on_part: OnPart | None
) -> Reconstruction:
    return fit_reconstruction(
        *models,
        report,
        seed=settings.seed,
        on_layer=None if on_part is None else lambda done, total: on_part("layers", done, total),
    )
