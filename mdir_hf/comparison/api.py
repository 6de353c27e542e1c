"""The entry points of a comparison: ``compare`` and ``HomologyChecker``."""

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
    """Compare two models that are opened at once: fewer round trips to the Hub than one after the other.

    For several candidates make a :class:`HomologyChecker`.

    Args:
        reference: One model: ``owner/name``, ``owner/name@revision``, a Hub URL, a local folder or weight file (a
            folder of a repository follows ``/``, one of several quantisations ``:``); or a ``PreTrainedModel``, or a
            PEFT model on one, in memory. For a tokenizer, base or variant of its own give a
            :class:`~mdir_hf.NamedModel`.
        candidate: The other.
        settings: What is asked.
        reading: How repositories are opened.
        listeners: Who is told while it runs.
        options: Any field of these three by its name, such as ``level="layers"``, ``token=…`` or ``progress=False``.

    Returns:
        The report.

    Raises:
        MdirError: Where the question cannot be asked or the files cannot be read; "cannot tell" is a verdict.

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
    """Holds a reference model and compares others with it.

    Use :meth:`from_pretrained`. One checker compares one candidate at a time; calls from several threads queue.

    Examples:
        >>> from mdir_hf import HomologyChecker
        >>> checker = HomologyChecker.from_pretrained("Qwen/Qwen2.5-0.5B")
        >>> report = checker.compare("someone/their-model", progress=False)
        >>> report.verdict.value, report.log10_p < -10
        ('homologous', True)

    Attributes:
        reference: The model that others are compared with.
        settings: Of every comparison, on a device that this machine has.
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
        """Open the reference model. Reads its config, the index of its weights and one header; no weights.

        Args:
            reference: The model, as in :func:`compare`.
            settings: Of every comparison.
            reading: How repositories are opened.
            options: Any field of :class:`Settings`, :class:`Reading` and :class:`NamedModel` by its name, such as
                ``alpha=1e-6``, ``token=…``, ``revision=…`` or ``tokenizer=…``.

        Raises:
            InputError: If what names the model, or an argument, cannot be used.
            HubError: If the model's files cannot be read.
            CheckpointError: If it has no weights that can be read.
            AnatomyError: If they are not those of a language model.
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
            settings: What is asked; by default :attr:`settings`.
            listeners: Who is told while it runs.
            options: Any field of :class:`Settings`, :class:`Listeners` and :class:`NamedModel` by its name, and
                ``token``: the candidate's, by default the reference's.

        Returns:
            The report. Its ``io`` counts this comparison; the first one also counts opening the reference.

        Raises:
            MdirError: Where the question cannot be asked or the files cannot be read; "cannot tell" is a verdict.
        """
        check_keywords(options, CandidateOptions)
        asked = changed(settings or self.settings, options)
        asked = replace(asked, device=available_device(asked.device))
        model = named(candidate, options)
        with self._lock, self._ledger.limited(asked.max_bytes):
            watch = Watch(self._ledger, changed(listeners, options), from_start=self._is_first)
            self._is_first = False
            with watch.listening():
                watch.enter("opening")
                opened = self._open(model, options.get("token"), asked.level)
                return compare_models(self.reference, opened, asked, watch)

    def plan(
        self,
        candidate: str | os.PathLike[str] | PreTrainedModel | NamedModel,
        *,
        settings: Settings | None = None,
        **options: Unpack[PlanOptions],
    ) -> ReadPlan:
        """Say what a comparison would read, and how much memory it would need, before it is run.

        Reads the candidate's config, index and one header, and both tokenizers; no weights. They are cached, so that
        :meth:`compare` does not fetch them again.

        Args:
            candidate: The model, as in :meth:`compare`.
            settings: What is asked; by default :attr:`settings`.
            options: As in :meth:`compare`.

        Returns:
            The plan; its text is what the command line prints.

        Raises:
            MdirError: Where the files cannot be read.
        """
        check_keywords(options, PlanOptions)
        asked, model = changed(settings or self.settings, options), named(candidate, options)
        with self._lock:
            opened = self._open(model, options.get("token"), asked.level)
            return plan_comparison(self.reference, opened, asked.level, asked.alpha)

    def _open(self, model: NamedModel, token: str | bool | None, level: Level) -> Model:
        reading = self._reading if token is None else replace(self._reading, token=token)
        return open_beside(self.reference, model, reading, self._ledger, level)
