"""Reconstruct the transformation between two models, and store the files while visitors can download them."""

from __future__ import annotations

import json
import secrets
import threading
import time
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any

from mdir_hf import HomologyReport
from mdir_hf.comparison.progress import Progress
from mdir_hf.comparison.settings import Settings
from mdir_hf.errors import ReconstructionError
from mdir_hf.model.open import Reading
from mdir_hf.names import shown_name
from mdir_hf.reconstruction.reconstruct import reconstruct
from mdir_hf.reconstruction.records import describe
from mdir_hf.reconstruction.storage import ARRAYS, INDEX, reconstruction_files
from mdir_hf.report import Level, ReportArrays, SettledBy, Verdict
from mdir_space.jobs.compare import compared
from mdir_space.jobs.job import Emit, Job, throttled
from mdir_space.jobs.question import ReconstructionQuestion

STAGE = "reconstruction"
"""Name of the stage in :class:`~mdir_hf.comparison.progress.Progress`, which has one part per layer."""

MAX_DOWNLOAD_BYTES = 32 << 20
"""Maximum size of an archive. SmolLM2-135M takes 2 MB if every head and neuron moved; a rotation of 2,048 channels
takes 16 MB."""

MAX_DOWNLOADS_BYTES = 128 << 20
DOWNLOAD_S = 600.0
"""Time for which an archive can be downloaded. Repeated in SECURITY.md and in the guide."""


@dataclass(frozen=True)
class ReconstructionResult:
    """A transformation and its files.

    Attributes:
        reference: The model at which the transformation starts, with its commit.
        candidate: The model to which it leads, with its commit.
        lines: The transformation in words.
        index: Content of ``reconstruction.json``.
        n_bytes: Size of the archive.
        archive: A zip file with the index and the arrays; empty once the server stores it under ``name``.
        name: Secret name of the archive on this server.
    """

    reference: str
    candidate: str
    lines: tuple[str, ...]
    index: dict[str, Any] = field(repr=False)
    n_bytes: int
    archive: bytes = field(repr=False)
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class ReconstructionJob(Job[ReconstructionResult]):
    """Reconstructs the transformation between two models.

    Attributes:
        report: The comparison of the models, if this server has it; otherwise the job compares them first.
    """

    question: ReconstructionQuestion
    report: HomologyReport | None = None

    def run(self, emit: Emit) -> ReconstructionResult:
        """Compare if necessary, reconstruct, and pack the files."""
        report = compared(self, self.question, emit) if self.report is None else self.report
        if why_not := why_not_reconstructed(report):
            raise ReconstructionError(why_not)
        n_read = report.io.bytes_read + report.io.bytes_from_cache
        tell = throttled(emit)
        reconstruction = reconstruct(
            self.access.reference.pinned,
            self.access.candidate.pinned,
            report=report,
            settings=Settings(
                level=Level(self.question.level), alpha=self.question.alpha, max_bytes=self._bytes_left(report)
            ),
            reading=Reading(**self.read_options),
            on_part=lambda stage, n_done, n_parts: tell(Progress(STAGE, n_read, None, n_done, n_parts)),
        )
        index, arrays = reconstruction_files(reconstruction)
        archive = _packed({INDEX: index, ARRAYS: arrays})
        if len(archive) > MAX_DOWNLOAD_BYTES:
            raise ReconstructionError(
                f"the files of this reconstruction take {len(archive):,} bytes, and this server offers at most "
                f"{MAX_DOWNLOAD_BYTES:,}; mdir-hf align saves them on your own machine"
            )
        return ReconstructionResult(
            self.access.reference.pinned,
            self.access.candidate.pinned,
            tuple(describe(reconstruction)),
            json.loads(index),
            len(archive),
            archive,
        )

    def _bytes_left(self, report: HomologyReport) -> int | None:
        if self.n_bytes is None or self.report is not None:
            return self.n_bytes
        return max(1, self.n_bytes - report.io.bytes_read - report.io.bytes_from_cache)


def why_not_reconstructed(report: HomologyReport) -> str:
    """Return why two compared models have no transformation; empty if they may have one."""
    names = " and ".join(shown_name(model.repo) for model in (report.reference, report.candidate))
    if report.settled_by is SettledBy.IDENTICAL_FILES:
        return f"The weight files of {names} are the same, so there is no transformation between them."
    if report.verdict is not Verdict.HOMOLOGOUS:
        return (
            f"The verdict for {names} is {report.verdict.value}. Only homologous models have a transformation to "
            "reconstruct."
        )
    return ""


def without_arrays(report: HomologyReport) -> HomologyReport:
    """Return a report without its arrays, which jobs do not need."""
    return replace(report, arrays=ReportArrays())


def _packed(files: dict[str, bytes]) -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


class Downloads:
    """Archives under secret names, kept in memory for a few minutes each. Thread-safe.

    If archives take more than ``most_bytes``, the oldest are dropped.
    """

    def __init__(
        self,
        most_bytes: int = MAX_DOWNLOADS_BYTES,
        seconds: float = DOWNLOAD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_bytes, self._seconds, self._clock = most_bytes, seconds, clock
        self._lock = threading.Lock()
        self._archives: OrderedDict[str, tuple[float, bytes]] = OrderedDict()

    def hold(self, result: ReconstructionResult) -> ReconstructionResult:
        """Store the archive of a result, and return the result with the archive's name in its place."""
        name = secrets.token_urlsafe(24)
        with self._lock:
            self._drop_old()
            self._archives[name] = (self._clock() + self._seconds, result.archive)
            while sum(len(archive) for _, archive in self._archives.values()) > self._most_bytes:
                self._archives.popitem(last=False)
        return replace(result, archive=b"", name=name)

    def get(self, name: str) -> bytes | None:
        """Return an archive, or None if it is no longer stored."""
        with self._lock:
            self._drop_old()
            _, archive = self._archives.get(name, (0.0, None))
            return archive

    def _drop_old(self) -> None:
        now = self._clock()
        for name in [name for name, (end, _) in self._archives.items() if end <= now]:
            del self._archives[name]
