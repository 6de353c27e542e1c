"""Figures of a report: their selection, alt texts and reproducible bytes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from mdir_hf import HomologyReport
from mdir_hf.render.figures import draw_figures, draw_survey_matrix, figure_bytes
from tests.render.figures.drawn_reports import NO_ARRAYS, a_report

matplotlib = pytest.importorskip("matplotlib")

EVERY_FIGURE = [
    "neurons",
    "embedding",
    "embedding_matched",
    "unembedding",
    "unembedding_matched",
    "layers",
    "flow",
    "drift",
]


def test_a_full_report_has_every_figure():
    assert list(a_report().figures()) == EVERY_FIGURE


def test_every_figure_states_its_finding_as_alt_text():
    said = {name: figure.get_label() for name, figure in a_report().figures().items()}

    assert "24 of 24 channels match one to one, permutation found." in said["embedding"]
    assert "embeddings of owner/base and me/tuned, with matched channels brought onto" in said["embedding_matched"]
    assert "of the unembeddings of owner/base and me/tuned" in said["unembedding"]
    assert "2 of 2 compared layers of me/tuned have a partner" in said["neurons"]
    assert "63 of 64 tested neurons are copies" in said["neurons"]
    assert "3 of 3 layers of me/tuned have a partner among the 3 layers of owner/base" in said["layers"]
    assert "13 of 14 compared projections agree; the mean cosine of their rows is 0.943" in said["drift"]
    assert said["drift"].endswith("the lowest is 0.500, of MLP gate in layer 2.")


def test_a_report_from_json_has_every_figure_but_the_heat_maps():
    report = a_report()

    assert list(HomologyReport.from_json(report.to_json()).figures()) == ["neurons", *EVERY_FIGURE[5:]]


def digests() -> str:
    """Return a digest of a chart, of maps and of the matrix of a survey."""
    total = hashlib.sha256()
    drawn = draw_figures(a_report(unembedding=None, arrays=NO_ARRAYS))
    figures = {name: drawn[name] for name in ("neurons", "layers", "drift")}
    figures["survey"] = draw_survey_matrix(
        ["a", "b", "c"],
        [[0.0, -50.0, 0.0], [-50.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
        [["homologous", "homologous", None], ["homologous"] * 2 + ["inconclusive"], [None, "inconclusive", None]],
        groups=[["c"], ["a", "b"]],
        dark=True,
    )
    for figure in figures.values():
        for file_format in ("svg", "png"):
            total.update(figure_bytes(figure, file_format))
    return total.hexdigest()


def test_the_same_report_gives_the_same_bytes_in_every_process():
    script = "from tests.render.figures.test_report_figures import digests; print(digests())"
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=Path(__file__).parents[3],
        # Sets have another order, and the backend differs.
        env={**os.environ, "PYTHONHASHSEED": "1", "MPLBACKEND": "svg"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout == f"{digests()}\n"


def test_settings_of_the_user_change_nothing_and_are_not_changed():
    report = a_report(modules=None, arrays=NO_ARRAYS)
    plain = {name: figure_bytes(figure, "svg") for name, figure in report.figures().items()}
    with matplotlib.rc_context({"text.usetex": True, "font.size": 40, "savefig.bbox": "tight", "axes.grid": True}):
        before = dict(matplotlib.rcParams)
        assert {name: figure_bytes(figure, "svg") for name, figure in report.figures().items()} == plain
        assert dict(matplotlib.rcParams) == before


def test_threads_change_matplotlibs_settings_one_after_the_other(monkeypatch):
    import matplotlib.style

    real, inside, overlapped = matplotlib.style.context, [], threading.Event()

    @contextmanager
    def watched(*arguments):
        inside.append(threading.get_ident())
        # The first thread gives the second time to enter, which must not happen.
        if len(set(inside)) > 1 or overlapped.wait(0.2):
            overlapped.set()
        with real(*arguments):
            yield
        inside.remove(threading.get_ident())

    monkeypatch.setattr(matplotlib.style, "context", watched)
    report = a_report(embedding=None, unembedding=None, modules=None, arrays=NO_ARRAYS)
    before = dict(matplotlib.rcParams)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: figure_bytes(report.figures()["layers"], "svg"), range(2))

    assert not overlapped.is_set()
    assert one == other
    assert dict(matplotlib.rcParams) == before
