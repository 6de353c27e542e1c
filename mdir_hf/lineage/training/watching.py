"""``watch``: samples a model's weights, and compares them with the same entries on request."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from mdir_hf.comparison.api import HomologyChecker
from mdir_hf.errors import InputError
from mdir_hf.lineage.entries import Place, WeightEntries, choose_entries, matrix_shape, placed_matrices
from mdir_hf.lineage.training.drift import Drift, PartDrift, traces_over_rank
from mdir_hf.model.memory import LoadedRepository, load_model
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.model.opened import Model
from mdir_hf.report import HomologyReport

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class ModelWatch:
    """Watches one model. Made by :func:`watch`; a context manager that measures once more at its end.

    Attributes:
        base: What the model is compared with by :meth:`report`: a name or folder; None where nobody said.
        drifts: What was measured so far.
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
        self._blocks: dict[Place, WeightEntries] = {}
        self._samples: dict[Place, torch.Tensor] = {}
        mine, other = placed_matrices(self._model), placed_matrices(start)
        for place in (place for place in mine if place in other):
            shape, base_shape = matrix_shape(self._model, mine[place]), matrix_shape(start, other[place])
            if shape[1] != base_shape[1] or (shape[0] != base_shape[0] and place[0] is not None):
                continue  # a resized vocabulary keeps the rows that it had; another width is another weight
            block = choose_entries(self._model, place, mine[place], n_rows=min(shape[0], base_shape[0]), seed=seed)
            sample = block.of(other[place]).read(start)
            if sample.any():  # what starts from zero has no direction to keep
                self._blocks[place], self._samples[place] = block, sample
        if not self._blocks:
            raise InputError(
                "none of its weights has a role and shape that its base has, too", subject=self._model.label
            )

    def measure(self, step: int | None = None) -> Drift:
        """Measure how far the model is from its base now, and keep it in ``drifts``.

        Args:
            step: Which step of training this is, shown to readers of the log.

        Returns:
            The drift. Costs some milliseconds for each hundred weights, and moves 64 rows of each to the CPU. Of a
            model in shards every rank has to call it.

        Raises:
            CorruptCheckpointError: If a weight holds NaN or infinity where it is looked at: training has diverged.
        """
        places = list(self._blocks)
        base = [self._samples[place] for place in places]
        now = [self._blocks[place].read(self._model) for place in places]
        parts = []
        for place, x, y, trace in zip(places, base, now, traces_over_rank(base, now), strict=True):
            before, after = x.double(), y.double()  # squares of what float32 holds pass what it holds
            d2 = (after - before).square().mean().item()
            parts.append(PartDrift(*place, d2, (d2 / before.square().mean().item()) ** 0.5, trace))
        parts.sort(key=lambda part: (part.layer is not None, part.layer or 0))
        drift = Drift(step, tuple(parts))
        self.drifts.append(drift)
        return drift

    def report(self, **options: object) -> HomologyReport:
        """Compare the model as it is now with its base, as :class:`~mdir_hf.comparison.api.HomologyChecker` does.

        Args:
            options: As for :meth:`~mdir_hf.comparison.api.HomologyChecker.compare`, ``level`` and the like.

        Raises:
            InputError: If nobody has said what its base is.
            MdirError: Where the base cannot be read.
        """
        if self.base is None:
            raise InputError(
                "the model does not say what it was loaded from; name its base: watch(model, base=…)",
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
    """Begin to watch how far a model moves while it is trained.

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
        model: The model, with or without an adapter; as for
            :meth:`~mdir_hf.comparison.api.HomologyChecker.from_pretrained`.
        base: What it is measured from: a name, a folder or another model. By default the model as it is now; a report
            then compares with what it was loaded from.
        tokenizer: Its tokenizer, for the report.
        seed: Seed of the entries that are watched: 64 rows and 512 columns of each weight that has a role. Experts of
            mixtures are left out.

    Returns:
        The watch: ``measure()`` for the drift now, ``report()`` for a comparison with the base.

    Raises:
        InputError: If it is not a model of transformers, or has no weights in common with the base.
    """
    return ModelWatch(model, base=base, tokenizer=tokenizer, seed=seed)


def _open(place: LoadedRepository | str | os.PathLike[str]) -> Model:
    return NamedModel(place).open(Reading())


def _place_of(base: str | os.PathLike[str] | PreTrainedModel) -> LoadedRepository | str | os.PathLike[str]:
    return base if isinstance(base, str | os.PathLike) else load_model(base)


def _came_from(model: Model) -> str | None:
    """What transformers says the model was loaded from; of an adapter, what lies under it."""
    lowest = model.weights.base
    return lowest.came_from if isinstance(lowest, LoadedRepository) else None
