"""Entry points of a comparison: ``compare`` and ``HomologyChecker``."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from mdir_hf.comparison.options import (
    CandidateOptions,
    CheckerOptions,
    CompareOptions,
    PlanOptions,
    changed,
    check_keywords,
    named,
)
from mdir_hf.comparison.plan import ReadPlan
from mdir_hf.comparison.planning import plan_comparison
from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.run import compare_models
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.open import NamedModel, Reading, open_beside, open_both
from mdir_hf.model.opened import Model
from mdir_hf.processor import available_device
from mdir_hf.report import HomologyReport, Level

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from typing_extensions import Unpack


def compare(
    reference: str | os.PathLike[str] | PreTrainedModel | NamedModel,
    candidate: str | os.PathLike[str] | PreTrainedModel | NamedModel,
    *,
    settings: Settings = Settings(),
    reading: Reading = Reading(),
    listeners: Listeners = Listeners(),
    **options: Unpack[CompareOptions],
) -> HomologyReport:
    """Compare two models.

    Both models are opened concurrently, which takes fewer round trips to the Hub. To compare several candidates with
    one reference, use :class:`HomologyChecker`.

    Args:
        reference: A Hub repository (``owner/name`` or ``owner/name@revision``), a Hub URL, a local folder or a weight
            file. Add ``/folder`` for a subfolder of a repository and ``:name`` for one of several quantisations.
            Alternatively a ``PreTrainedModel``, or a PEFT model around one, in memory. To set a tokenizer, base or
            variant for one model, pass a :class:`~mdir_hf.NamedModel`.
        candidate: The other model.
        settings: Level, significance threshold and other options of the comparison.
        reading: How repositories are opened.
        listeners: Callbacks that receive progress.
        options: Any field of these three classes by name, such as ``level="layers"``, ``token=…`` or
            ``progress=False``.

    Returns:
        The report.

    Raises:
        MdirError: If an argument is invalid or the files cannot be read. "Cannot tell" is a verdict, not an error.

    Examples:
        >>> from mdir_hf import compare
        >>> compare("Qwen/Qwen2.5-0.5B", "someone/their-model", progress=False).verdict.value
        'homologous'
    """
    check_keywords(options, CompareOptions)
    first, second = (named(model, {}) for model in (reference, candidate))
    settings, reading, listeners = changed(settings, options), changed(reading, options), changed(listeners, options)
    settings = replace(settings, device=available_device(settings.device))
    ledger = IoLedger()
    with ledger.limited(settings.max_bytes):
        watch = Watch(ledger, listeners, from_start=True)
        with watch.listening():
            watch.enter("opening")
            models = open_both(first, second, reading, ledger, settings.level)
            return compare_models(*models, settings, watch)


class HomologyChecker:
    """Compare several models with one reference.

    Create a checker with :meth:`from_pretrained`. It compares one candidate at a time; calls from other threads wait.

    Examples:
        >>> from mdir_hf import HomologyChecker
        >>> checker = HomologyChecker.from_pretrained("Qwen/Qwen2.5-0.5B")
        >>> report = checker.compare("someone/their-model", progress=False)
        >>> report.verdict.value, report.log10_p < -10
        ('homologous', True)

    Attributes:
        reference: The model that others are compared with.
        settings: Default settings, with the device resolved to one that is available.
    """

    def __init__(
        self, reference: Model, *, ledger: IoLedger, settings: Settings = Settings(), reading: Reading = Reading()
    ) -> None:
        self.reference = reference
        self.settings = replace(settings, device=available_device(settings.device))
        self._reading = reading
        self._ledger = ledger
        self._is_first = True
        self._lock = threading.Lock()

    @classmethod
    def from_pretrained(
        cls,
        reference: str | os.PathLike[str] | PreTrainedModel | NamedModel,
        *,
        settings: Settings = Settings(),
        reading: Reading = Reading(),
        **options: Unpack[CheckerOptions],
    ) -> HomologyChecker:
        """Open the reference model. Reads its config, the index of its weights and one header, but no weights.

        Args:
            reference: The model, as in :func:`compare`.
            settings: Default settings for all comparisons.
            reading: How repositories are opened.
            options: Any field of :class:`Settings`, :class:`Reading` and :class:`NamedModel` by name, such as
                ``alpha=1e-6``, ``token=…``, ``revision=…`` or ``tokenizer=…``.

        Raises:
            InputError: If an argument is invalid.
            HubError: If files cannot be read from the Hub.
            CheckpointError: If there are no readable weights.
            AnatomyError: If the weights do not belong to a language model.
        """
        check_keywords(options, CheckerOptions)
        ledger, reading = IoLedger(), changed(reading, options)
        model = named(reference, options).open(reading, ledger)
        return cls(model, ledger=ledger, settings=changed(settings, options), reading=reading)

    def compare(
        self,
        candidate: str | os.PathLike[str] | PreTrainedModel | NamedModel,
        *,
        settings: Settings | None = None,
        listeners: Listeners = Listeners(),
        **options: Unpack[CandidateOptions],
    ) -> HomologyReport:
        """Compare another model with the reference.

        Args:
            candidate: The model, as in :func:`mdir_hf.compare`.
            settings: Settings for this comparison. Defaults to :attr:`settings`.
            listeners: Callbacks that receive progress.
            options: Any field of :class:`Settings`, :class:`Listeners` and :class:`NamedModel` by name, and ``token``
                for the candidate. The token defaults to the reference's.

        Returns:
            The report. Its ``io`` counts this comparison; for the first comparison it includes opening the reference.

        Raises:
            MdirError: If an argument is invalid or the files cannot be read. "Cannot tell" is a verdict, not an error.
        """
        check_keywords(options, CandidateOptions)
        settings = changed(settings or self.settings, options)
        settings = replace(settings, device=available_device(settings.device))
        model = named(candidate, options)
        with self._lock, self._ledger.limited(settings.max_bytes):
            watch = Watch(self._ledger, changed(listeners, options), from_start=self._is_first)
            self._is_first = False
            with watch.listening():
                watch.enter("opening")
                opened = self._open(model, options.get("token"), settings.level)
                return compare_models(self.reference, opened, settings, watch)

    def plan(
        self,
        candidate: str | os.PathLike[str] | PreTrainedModel | NamedModel,
        *,
        settings: Settings | None = None,
        **options: Unpack[PlanOptions],
    ) -> ReadPlan:
        """Return what a comparison would read and how much memory it would need.

        Reads the candidate's config, index and one header, and both tokenizers, but no weights. These files are cached
        for a later :meth:`compare`.

        Args:
            candidate: The model, as in :meth:`compare`.
            settings: Settings for the comparison. Defaults to :attr:`settings`.
            options: Any field that :meth:`compare` takes, without the listeners.

        Returns:
            The plan. Its text is the output of the command line.

        Raises:
            MdirError: If the files cannot be read.
        """
        check_keywords(options, PlanOptions)
        settings, model = changed(settings or self.settings, options), named(candidate, options)
        with self._lock:
            opened = self._open(model, options.get("token"), settings.level)
            return plan_comparison(self.reference, opened, settings.level, settings.alpha)

    def _open(self, model: NamedModel, token: str | bool | None, level: Level) -> Model:
        reading = self._reading if token is None else replace(self._reading, token=token)
        return open_beside(self.reference, model, reading, self._ledger, level)
