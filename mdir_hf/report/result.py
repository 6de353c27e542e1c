"""The result of a comparison as a frozen dataclass; its JSON has the schema ``mdir-hf/report/5``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Lt

from mdir_hf.errors import MissingExtraError
from mdir_hf.report.models import InputOutput, ModelSummary
from mdir_hf.report.parts import (
    Count,
    Coverage,
    DirectionFact,
    Exclusion,
    LayerPair,
    LayersResult,
    LayerTable,
    Log10P,
    MatrixResult,
    ModuleResult,
    NeuronNumbers,
    StackPair,
)
from mdir_hf.report.terms import Assumption, Level, ModuleRole, Reason, SettledBy, Verdict
from mdir_hf.report.words import (
    DOES_NOT_MEAN,
    ICON,
    MEANING,
    MEANING_INCONCLUSIVE,
    MEANING_NOTHING,
    MEANING_PARTS_ONLY,
    MEANING_SEARCHED,
    MEANS,
    MEANS_SAME_FILES,
    MEANS_SEARCHED,
    P_IS_NO_MEASURE,
    PARTS_MATCH,
    SAME_FILES,
    THE_SAME_FILES,
    matched_neurons_text,
    probability_text,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.figure import Figure
    from pandas import DataFrame


@dataclass(frozen=True, slots=True, eq=False)
class MatrixArrays:
    """Arrays for one pair of matrices that are too large for JSON.

    Attributes:
        polar: Absolute polar factor, reduced to the largest entry of each block for figures.
        matched: ``polar`` with matched channels moved to the diagonal, if a significant match moves channels.
        channels: ``(2, m)`` matched channels of both models, or None.
    """

    polar: npt.NDArray[np.float32] | None = None
    matched: npt.NDArray[np.float32] | None = None
    channels: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LayerMaps:
    """Maps found inside one pair of layers.

    Attributes:
        heads: For each attention projection, ``(2, g)`` reference heads and matching candidate heads.
        turns: For each attention projection, ``(g, d', d)`` maps from the rows of a reference head to its candidate
            head.
        neurons: ``(3, k)`` sampled reference neurons, their partners, and the sign of up and down; or None.
    """

    layer: LayerPair
    heads: Mapping[ModuleRole, npt.NDArray[np.int64]]
    turns: Mapping[ModuleRole, npt.NDArray[np.float32]]
    neurons: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ReportArrays:
    """The arrays of a report; empty if the report was read from JSON."""

    embedding: MatrixArrays = MatrixArrays()
    unembedding: MatrixArrays = MatrixArrays()
    layers: tuple[LayerMaps, ...] = ()


@dataclass(frozen=True, slots=True)
class HomologyReport:
    """The result of ``checker.compare``.

    Attributes:
        verdict: The outcome at significance level ``alpha``.
        reason: Why the verdict is inconclusive; None for other verdicts.
        log10_p: log10 of a bound on the probability that independent models agree this well in the step that settled
            the question; at most 0, and below log10 of alpha if and only if the verdict is homologous. None if that
            step searched for partners, which gives no bound; see ``agreement``.
        alpha: Significance level.
        tests: Number of comparisons of neurons that share alpha.
        level: Requested level of the comparison.
        settled_by: The step that settled the verdict, or None.
        reference: One model.
        candidate: The other model.
        embedding: One look at the embeddings; None if they were not read.
        unembedding: One look at the unembeddings (``lm_head``), if a model has no embedding; None if not read.
        layers: Layers that agree; None unless the level is ``layers`` or ``paper``.
        modules: Results of Algorithm 3 on matched layers; None unless the level is ``paper``.
        caveats: Sentences on the limits of this result.
        io: Bytes and files read, and requests sent.
        seconds: Wall-clock seconds spent in each step.
        seed: Seed for random choices.
        version: Version of this package.
        excludes: Relations that a ``no_evidence`` verdict excludes.
        assumption: The assumption that a homologous verdict rests on; None for other verdicts and equal files.
        neurons: The comparison of neurons that settled the question or, if none did, the last one by number; None if
            no neurons were compared.
        sample_seed: Seed for sampling neurons, from system entropy unless set; None if no neurons were sampled.
        parts: Other stacks of the two models, compared pair by pair; None if not run.
        coverage: How every part of both models was treated; None in older reports and if the files are unknown.
        direction: Equal values of two relatives, and both ways in which they can come about.
        projections: How each projection of each layer changed; None if not run.
        p_is_bound: Whether ``log10_p`` bounds a probability (a property).
        agreement: How much agrees, as a phrase; None unless the verdict is homologous (a property).
        arrays: Arrays too large for JSON.
    """

    verdict: Verdict
    reason: Reason | None
    log10_p: Log10P | None
    alpha: Annotated[float, Gt(0.0), Lt(1.0)]
    tests: Count
    level: Level
    settled_by: SettledBy | None
    reference: ModelSummary
    candidate: ModelSummary
    embedding: MatrixResult | None
    unembedding: MatrixResult | None
    layers: LayersResult | None
    modules: tuple[ModuleResult, ...] | None
    caveats: tuple[str, ...]
    io: InputOutput
    seconds: Mapping[str, Annotated[float, Ge(0.0)]]
    seed: Count
    version: str
    excludes: Exclusion | None = None
    assumption: Assumption | None = None
    neurons: NeuronNumbers | None = None
    sample_seed: Count | None = None
    parts: tuple[StackPair, ...] | None = None
    coverage: Coverage | None = None
    direction: tuple[DirectionFact, ...] = ()
    projections: LayerTable | None = None
    arrays: ReportArrays = field(default=ReportArrays(), compare=False, repr=False)

    @property
    def matrices(self) -> Mapping[str, MatrixResult]:
        """The results for pairs of matrices, keyed by name: embedding, unembedding."""
        pairs = {"embedding": self.embedding, "unembedding": self.unembedding}
        return {name: matrix for name, matrix in pairs.items() if matrix is not None}

    @property
    def icon(self) -> str:
        """A character for the verdict: a filled, empty or half-filled circle."""
        return ICON[self.verdict]

    @property
    def sentence(self) -> str:
        """The result as a sentence to quote, of at most 15 words, which names both models."""
        from mdir_hf.render.sentence import sentence_of

        return sentence_of(self)

    @property
    def warning(self) -> str | None:
        """The most important limit of :attr:`sentence`, such as a large part that matches nothing; None if none."""
        from mdir_hf.render.sentence import warning_of

        return warning_of(self)

    @property
    def p_is_bound(self) -> bool:
        """Whether ``log10_p`` bounds a probability."""
        return self.log10_p is not None

    @property
    def agreement(self) -> str | None:
        """How much agrees, such as ``all 128 tested neurons match``; None unless homologous."""
        if self.verdict is not Verdict.HOMOLOGOUS:
            return None
        if self.settled_by is SettledBy.IDENTICAL_FILES:
            return THE_SAME_FILES
        if self.settled_by is SettledBy.PARTS:
            return PARTS_MATCH
        return None if self.neurons is None else matched_neurons_text(self.neurons)

    @property
    def strength(self) -> str:
        """The strength of the agreement: ``the same files``, ``p ≤ 10⁻⁷⁹⁵``, or :attr:`agreement`; empty if none."""
        if self.verdict is not Verdict.HOMOLOGOUS:
            return ""
        if self.settled_by is SettledBy.IDENTICAL_FILES:
            return THE_SAME_FILES
        if self.p_is_bound and self.log10_p is not None:
            return probability_text(self.log10_p)
        return self.agreement or ""

    @property
    def means(self) -> str:
        """The meaning of the verdict, in words."""
        if self.settled_by is SettledBy.IDENTICAL_FILES:
            return MEANS_SAME_FILES
        return MEANS[self.verdict] if self.p_is_bound else MEANS_SEARCHED

    @property
    def does_not_mean(self) -> tuple[str, ...]:
        """Sentences about conclusions that do not follow from the verdict."""
        sentences = DOES_NOT_MEAN[self.verdict]
        if self.verdict is Verdict.HOMOLOGOUS and not self.p_is_bound:
            sentences = tuple(line for line in sentences if line is not P_IS_NO_MEASURE)
        return sentences[:2] if self.settled_by is SettledBy.IDENTICAL_FILES else sentences

    @property
    def what_p_says(self) -> str:
        """The meaning of p for this pair, and its limits."""
        if self.settled_by is SettledBy.IDENTICAL_FILES:
            return SAME_FILES
        if self.verdict is Verdict.INCONCLUSIVE:
            return MEANING_INCONCLUSIVE
        if self.verdict is Verdict.NO_EVIDENCE:
            shares_a_part = any(pair.verdict is Verdict.HOMOLOGOUS for pair in self.parts or ())
            return MEANING_PARTS_ONLY if shares_a_part else MEANING_NOTHING
        return MEANING if self.p_is_bound else MEANING_SEARCHED

    @property
    def details(self) -> str:
        """Everything that was measured, as text of many lines; ``str(report)`` is the short answer."""
        from mdir_hf.render.text import details_of

        return details_of(self)

    def to_dict(self) -> dict[str, object]:
        """Return the fields of the JSON as plain dicts and lists, without the arrays."""
        from mdir_hf.report.encoding import plain_of

        return plain_of(self)

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return the report as one JSON object with the schema ``mdir-hf/report/5``."""
        from mdir_hf.report.encoding import json_of

        return json_of(self, indent=indent)

    @classmethod
    def from_json(cls, text: str) -> HomologyReport:
        """Parse a report in this schema and validate every field.

        Raises:
            InputError: If the text is not a report.
        """
        from mdir_hf.report.encoding import report_of

        return report_of(text)

    def figures(
        self,
        *,
        dark: bool = False,
        style: Literal["screen", "column", "page"] = "screen",
        labels: tuple[str, str] | None = None,
    ) -> Mapping[str, Figure]:
        """Draw the matplotlib figures for which this report has data, keyed by name (needs ``mdir-hf[plot]``).

        Args:
            dark: Whether to use light ink on dark paper.
            style: ``screen`` shows the finding as the title. ``column`` (3.35 inches wide) and ``page`` (6.9 inches)
                have no title, for papers; ``figure.savefig("flow.pdf")`` writes vector graphics.
            labels: Names of the reference and the candidate, which default to their repositories.

        Raises:
            InputError: If the style is unknown.
            MissingExtraError: If matplotlib is not installed.
        """
        from mdir_hf.render.figures import draw_figures

        return draw_figures(self, dark=dark, style=style, labels=labels)

    def to_frame(self) -> DataFrame:
        """Return the evidence as a pandas table with one row for each test; see :mod:`mdir_hf.render.frame`.

        Raises:
            MissingExtraError: If pandas is not installed.
        """
        from mdir_hf.render.frame import frame_of

        return frame_of(self)

    def _repr_html_(self) -> str:
        """Return the verdict card for a notebook, of up to 60 kB, with figures if matplotlib is installed."""
        from mdir_hf.render.html import notebook_html

        try:
            from mdir_hf.render.figures import small_img

            images = {name: small_img(figure) for name, figure in self.figures().items()}
        except MissingExtraError:
            images = {}
        return notebook_html(self, images)

    def __str__(self) -> str:
        from mdir_hf.render.text import text_of

        return text_of(self)
