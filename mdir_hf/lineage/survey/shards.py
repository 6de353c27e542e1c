"""Join the parts of a survey that its shards wrote."""

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
        folders: Output folders of the shards.
        out: Output folder for the whole survey, with its results, its sample and the stored rows, so that trees can be
            grown there. None: write nothing.

    Returns:
        The joined report, which may be incomplete.

    Raises:
        InputError: If a folder contains no survey, they belong to different surveys, or ``out`` cannot be written.
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
            for stored in (folder / FINGERPRINTS).glob("*.safetensors"):
                _place(stored, out / FINGERPRINTS / stored.name)
    return report


def _place(stored: Path, place: Path) -> None:
    if place.exists():
        return
    try:
        os.link(stored, place)  # no bytes are copied if both are on the same disk
    except OSError:
        shutil.copyfile(stored, place)
