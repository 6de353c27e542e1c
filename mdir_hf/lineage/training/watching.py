"""``watch``: sample a model's weights, and compare the sample with later weights."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from mdir_hf.comparison.api import HomologyChecker
from mdir_hf.errors import InputError
from mdir_hf.lineage.entries import MatrixPlace, WeightEntries, choose_entries, matrix_shape, placed_matrices
from mdir_hf.lineage.training.drift import Drift, PartDrift, traces_over_rank
from mdir_hf.model.memory import LoadedRepository, load_model
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.model.opened import Model
from mdir_hf.report import HomologyReport

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class ModelWatch:
    """Measures how far a model moves from its base. As a context manager, it measures once more on exit.

    Attributes:
        base: Name, folder or model that :meth:`report` compares with; None if unknown.
        drifts: Measurements so far.
    """

    def __init__(
        self,
        model: object,
        *,
        base: str | os.PathLike[str] | PreTrainedModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        seed: int = 0,
    ) -> None:
        self._loaded = model
        self._tokenizer = tokenizer
        self._model = _open(load_model(model))
        self.base = base if base is not None else _came_from(self._model)
        self.drifts: list[Drift] = []
        start = self._model if base is None else _open(_place_of(base))
        self._blocks: dict[MatrixPlace, WeightEntries] = {}
        self._samples: dict[MatrixPlace, torch.Tensor] = {}
        own_parts, base_parts = placed_matrices(self._model), placed_matrices(start)
        for place in (place for place in own_parts if place in base_parts):
            shape, base_shape = matrix_shape(self._model, own_parts[place]), matrix_shape(start, base_parts[place])
            if shape[1] != base_shape[1] or (shape[0] != base_shape[0] and place[0] is not None):
                continue  # a resized vocabulary keeps its old rows; another width means another weight
            block = choose_entries(self._model, place, own_parts[place], n_rows=min(shape[0], base_shape[0]), seed=seed)
            sample = block.of(base_parts[place]).read(start)
            if sample.any():  # weights that start at zero have no direction
                self._blocks[place], self._samples[place] = block, sample
        if not self._blocks:
            raise InputError(
                "none of its weights has the same role and shape as a weight of its base", subject=self._model.label
            )

    def measure(self, step: int | None = None) -> Drift:
        """Measure the model's drift from its base, and append it to ``drifts``.

        Measuring a hundred weights takes milliseconds. If the model is sharded, every rank must call this method.

        Args:
            step: Training step, shown in the log.

        Raises:
            CorruptCheckpointError: If sampled weights contain NaN or infinity.
        """
        places = list(self._blocks)
        base = [self._samples[place] for place in places]
        now = [self._blocks[place].read(self._model) for place in places]
        parts = []
        for place, x, y, trace in zip(places, base, now, traces_over_rank(base, now), strict=True):
            before, after = x.double(), y.double()  # squares may overflow float32
            d2 = (after - before).square().mean().item()
            parts.append(PartDrift(*place, d2, (d2 / before.square().mean().item()) ** 0.5, trace))
        parts.sort(key=lambda part: (part.layer is not None, part.layer or 0))
        drift = Drift(step, tuple(parts))
        self.drifts.append(drift)
        return drift

    def report(self, **options: object) -> HomologyReport:
        """Compare the model in its current state with its base, using :class:`~mdir_hf.comparison.api.HomologyChecker`.

        Args:
            options: Options of :meth:`~mdir_hf.comparison.api.HomologyChecker.compare`, such as ``level``.

        Raises:
            InputError: If the base is unknown.
        """
        if self.base is None:
            raise InputError(
                "the source of the model is unknown; name its base: watch(model, base=…)",
                subject=self._model.label,
            )
        base_tokenizer = None if isinstance(self.base, str | os.PathLike) else self._tokenizer
        checker = HomologyChecker.from_pretrained(self.base, tokenizer=base_tokenizer)
        return checker.compare(self._loaded, tokenizer=self._tokenizer, progress=False, **options)  # type: ignore[arg-type]

    def __enter__(self) -> ModelWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.measure()


def watch(
    model: PreTrainedModel,
    *,
    base: str | os.PathLike[str] | PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    seed: int = 0,
) -> ModelWatch:
    """Watch how far a model moves during training.

    Examples:
        >>> with watch(model, tokenizer=tokenizer) as run:
        ...     for step, batch in enumerate(batches):
        ...         train_on(batch)
        ...         if step % 100 == 0:
        ...             print(f"{run.measure(step).trace_over_rank:.3f}")
        1.000
        >>> run.report().verdict.value
        'homologous'

    Args:
        model: The model, with or without an adapter, as for
            :meth:`~mdir_hf.comparison.api.HomologyChecker.from_pretrained`.
        base: Model, folder or name from which drift is measured. By default, drift is measured from the current
            weights, and a report compares with the model that was loaded.
        tokenizer: The model's tokenizer, which the report uses.
        seed: Seed for choosing at most 64 rows and 512 columns of each matrix, excluding experts.

    Raises:
        InputError: If ``model`` is not a transformers model, or has no weights in common with ``base``.
    """
    return ModelWatch(model, base=base, tokenizer=tokenizer, seed=seed)


def _open(place: LoadedRepository | str | os.PathLike[str]) -> Model:
    return NamedModel(place).open(Reading())


def _place_of(base: str | os.PathLike[str] | PreTrainedModel) -> LoadedRepository | str | os.PathLike[str]:
    return base if isinstance(base, str | os.PathLike) else load_model(base)


def _came_from(model: Model) -> str | None:
    lowest = model.weights.base
    return lowest.came_from if isinstance(lowest, LoadedRepository) else None
