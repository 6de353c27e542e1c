"""Measure how well the layers of a survey's relatives agree, and how far they have drifted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mdir_hf.comparison.coverage import with_coverage
from mdir_hf.comparison.neuron_sample import draw_sample_seed
from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.projections.analysis import describe_copies
from mdir_hf.comparison.reading import ReadOnce, read_closely
from mdir_hf.comparison.run import report_on_counts
from mdir_hf.comparison.settings import Settings
from mdir_hf.comparison.stacks import stack_pairs
from mdir_hf.errors import InputError, StoppedError, one_line
from mdir_hf.lineage.fingerprints.opening import Pin, open_model
from mdir_hf.lineage.survey.results import Pair, PairResult
from mdir_hf.lineage.survey.work import FAILURES, compare_in_full
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.open import Reading
from mdir_hf.model.opened import Model
from mdir_hf.render.model_words import ledger_texts
from mdir_hf.report import Verdict

MOST_OPEN = 8
"""Maximum number of models whose sampled rows are kept in memory, using at most 512 MB each."""


@dataclass
class OpenModels:
    """Models opened for a survey; only the :data:`MOST_OPEN` most recently used are kept open.

    Attributes:
        pins: Pins, keyed by model name; models without one are opened at their current commits.
        watch: Progress watch for ``ledger``; its ``listening()`` context must be open.
    """

    pins: Mapping[str, Pin]
    reading: Reading
    ledger: IoLedger
    watch: Watch
    _open: OrderedDict[str, tuple[Model, ReadOnce]] = field(default_factory=OrderedDict)

    def get(self, name: str) -> tuple[Model, ReadOnce]:
        """Return an open model, opening it if necessary, and the view of it whose rows are kept."""
        if name not in self._open:
            model = open_model(name, self.reading, self.ledger, self.pins.get(name))
            self._open[name] = model, read_closely(model)
        self._open.move_to_end(name)
        while len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)
        return self._open[name]


def describe_relatives(
    pairs: Sequence[Pair], results: Mapping[Pair, PairResult], models: OpenModels, settings: Settings
) -> Iterator[PairResult]:
    """Yield each pair's result, including the drift of its layers, or the reason why drift could not be measured.

    If two models share a residual basis, only ``seed`` and ``device`` are used from the settings.
    """
    for pair in pairs:
        try:
            described = _described(results[pair], models, settings)
        except StoppedError:
            raise
        except FAILURES as exc:
            yield replace(results[pair], layers_error=one_line(exc))
        else:
            yield described


def _described(result: PairResult, models: OpenModels, settings: Settings) -> PairResult:
    (reference, first), (candidate, second) = (models.get(name) for name in (result.reference, result.candidate))
    # Embeddings are not compared if neurons settle the question, so it is unknown whether the basis has changed.
    if first.anatomy.hidden_size == second.anatomy.hidden_size and result.transformation in (None, "identity"):
        analysis = describe_copies(first, second, seed=settings.seed, device=settings.device)
        if analysis is not None and analysis.n_found:
            report = report_on_counts(reference, candidate, None, settings, models.watch, neuron_seed=None)
            stacks = stack_pairs(
                reference,
                candidate,
                alpha=settings.alpha,
                seed=draw_sample_seed(),
                is_fresh=True,
                device=settings.device,
            )
            report = replace(report, verdict=Verdict.HOMOLOGOUS, projections=analysis.table, parts=stacks)
            ledger = ledger_texts(with_coverage(report, reference, candidate))
            return replace(result, layer_drift=analysis.table.drift(), ledger=ledger, layers_error=None)
    pair = result.reference, result.candidate
    compared = compare_in_full(pair, models.pins, settings, models.reading, models.watch, models.ledger)
    if compared.layers_error is not None:
        raise InputError(compared.layers_error)
    return replace(result, layer_drift=compared.layer_drift or (), ledger=compared.ledger, layers_error=None)
