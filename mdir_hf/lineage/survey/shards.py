"""Joins the parts of a survey that its shards wrote."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from mdir_hf.errors import InputError
from mdir_hf.lineage.survey.planning import SAMPLE, load_sample, writing_into
from mdir_hf.lineage.survey.results import RESULTS, SurveyReport, read_survey, result_lines
from mdir_hf.lineage.survey.run import FINGERPRINTS
from mdir_hf.render.folder import write_file


def join_shards(folders: Sequence[Path], out: Path | None) -> SurveyReport:
    """Join the shards of a survey.

    Args:
        folders: Where each of them wrote.
        out: Becomes a folder of the whole survey, with its results, its sample and the rows that the shards kept, so
            that trees can be grown there; None: nothing is written.

    Returns:
        The whole report, or as much of it as the shards have done.

    Raises:
        InputError: If a folder holds no survey, they are of different ones, or ``out`` cannot be written.
    """
    report = read_survey([folder / RESULTS for folder in folders])
    if out is None:
        return report
    samples = [load_sample(folder / SAMPLE) for folder in folders]
    if any(sample.tokens != samples[0].tokens for sample in samples):
        raise InputError("the shards read different tokens; start them all from one --sample", subject=str(folders[0]))
    with writing_into(out):
        (out / FINGERPRINTS).mkdir(exist_ok=True)
        if out.resolve() not in [folder.resolve() for folder in folders]:
            write_file(out / RESULTS, result_lines(report))
            write_file(out / SAMPLE, (folders[0] / SAMPLE).read_bytes())
        for folder in folders:
            for kept in (folder / FINGERPRINTS).glob("*.safetensors"):
                _place(kept, out / FINGERPRINTS / kept.name)
    return report


def _place(kept: Path, place: Path) -> None:
    if place.exists():
        return
    try:
        os.link(kept, place)  # no bytes are copied where both are on one disk
    except OSError:
        shutil.copyfile(kept, place)
