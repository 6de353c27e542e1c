"""The Reconstruction tab: an explanation, the reason why a reconstruction is impossible, or the result."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from mdir_hf import HomologyReport
from mdir_hf.names import shown_name
from mdir_space.html.notices import progress_notice
from mdir_space.html.reproduce import file_stem
from mdir_space.html.templates import render
from mdir_space.jobs.estimate import size_text
from mdir_space.jobs.reconstruction import DOWNLOAD_S, ReconstructionResult, why_not_reconstructed
from mdir_space.jobs.service import Queued, Running

CANCEL = "Cancel the reconstruction"
OF_EXAMPLE = (
    "No repository has the models of a stored result. In a clone of this project, make real builds them, and "
    "mdir-hf align reconstructs the transformation."
)


def reconstruction_tab(report: HomologyReport, *, is_example: bool = False) -> Markup:
    """Return the content of the tab before a reconstruction; ``is_example`` says that no repository has the models."""
    why_not = why_not_reconstructed(report) or (OF_EXAMPLE if is_example else "")
    names = [shown_name(model.repo) for model in (report.reference, report.candidate)]
    size = size_text(report.io.bytes_of_weights)
    return render("reconstruction", why_not=why_not, names=names, size=size, result=None)


def reconstruction_progress(step: Queued | Running[ReconstructionResult]) -> Markup:
    """Return the progress of a reconstruction, and a button that cancels it."""
    return render("reconstruction_state", notice=progress_notice(step), press="stop-reconstruction", label=CANCEL)


def reconstruction_end(notice: Markup) -> Markup:
    """Return a notice after a failed or cancelled reconstruction, and a button that starts it again."""
    return render("reconstruction_state", notice=notice, press="reconstruct", label="Align")


def reconstruction_result(result: ReconstructionResult, names: Sequence[str], address: str) -> Markup:
    """Return a reconstruction in words, and the link to its files.

    ``names`` are the two models as the visitor named them; ``address`` is the URL of the files.
    """
    return render(
        "reconstruction",
        result=result,
        names=names,
        address=address,
        file=f"{file_stem(names)}-reconstruction.zip",
        size=size_text(result.n_bytes),
        minutes=round(DOWNLOAD_S / 60),
    )
