"""Entry points for comparisons: ``compare`` and ``HomologyChecker``."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from mdir_hf.comparison.plan import ReadPlan, plan_comparison
from mdir_hf.comparison.progress import Progress, Watch
from mdir_hf.comparison.run import compare_models
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.errors import InputError, RemoteCodeRefusedError
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.memory import LoadedRepository, load_model, load_tokenizer
from mdir_hf.model.open import NamedModel, Reading, open_both
from mdir_hf.model.opened import Model
from mdir_hf.names import did_you_mean
from mdir_hf.processor import available_device
from mdir_hf.report import HomologyReport, Level

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from typing_extensions import Unpack


T = TypeVar("T")


class ModelOptions(TypedDict, total=False):
    """Keyword arguments that describe a model; see :class:`~mdir_hf.model.open.NamedModel`.

    Attributes:
        adapter: If False, compare an in-memory model without its adapter.
        trust_remote_code: Must not be true: tensors and tokenizers are read as data, and repository code is never run.
    """

    revision: str | None
    subfolder: str
    variant: str | None
    tokenizer: str | os.PathLike[str] | PreTrainedTokenizerBase | None
    bases: Sequence[str]
    adapter: bool
    trust_remote_code: bool


class ReadingOptions(TypedDict, total=False):
    """Keyword arguments for opening repositories: the fields of :class:`~mdir_hf.model.open.Reading`."""

    token: str | bool | None
    cache_dir: str | os.PathLike[str] | None
    local_files_only: bool
    force_download: bool
    allow_local: bool
    use_caches: bool
    public_only: bool


class SettingsOptions(TypedDict, total=False):
    """Keyword arguments for settings: the fields of :class:`~mdir_hf.comparison.settings.Settings`."""

    level: Level | str
    alpha: float
    seed: int
    device: str
    max_bytes: int | None
    max_memory_bytes: int | None
    sample_seed: int | None
    describes: bool


class ListenersOptions(TypedDict, total=False):
    """Keyword arguments for callbacks: the fields of :class:`~mdir_hf.comparison.settings.Listeners`."""

    progress: bool
    on_plan: Callable[[ReadPlan], None] | None
    on_progress: Callable[[Progress], None] | None
    on_found: Callable[[HomologyReport], None] | None


class CheckerOptions(ModelOptions, ReadingOptions, SettingsOptions, total=False):
    """Keyword arguments of :meth:`HomologyChecker.from_pretrained`."""


class CandidateOptions(ModelOptions, SettingsOptions, ListenersOptions, total=False):
    """Keyword arguments of :meth:`HomologyChecker.compare`; ``token`` defaults to the reference's."""

    token: str | bool | None


class PlanOptions(ModelOptions, SettingsOptions, total=False):
    """Keyword arguments of :meth:`HomologyChecker.plan`; ``token`` is used for the candidate."""

    token: str | bool | None


class CompareOptions(ReadingOptions, SettingsOptions, ListenersOptions, total=False):
    """Keyword arguments of :func:`compare`."""


def changed(instance: T, options: Mapping[str, Any]) -> T:
    """Return a copy of a frozen dataclass with fields taken from ``options``, ignoring options that are not fields."""
    names = {field.name for field in fields(instance)}  # type: ignore[arg-type]
    changes = {name: value for name, value in options.items() if name in names}
    return replace(instance, **changes) if changes else instance  # type: ignore[type-var]


def check_keywords(options: Mapping[str, Any], options_type: type) -> None:
    """Reject keyword arguments that are not in the TypedDict ``options_type``.

    Raises:
        TypeError: If a keyword is unknown.
        RemoteCodeRefusedError: If ``trust_remote_code`` is true.
    """
    unknown = next((name for name in options if name not in options_type.__annotations__), None)
    if unknown is not None:
        hint = (
            did_you_mean(unknown, options_type.__annotations__)
            or f"; known are {', '.join(options_type.__annotations__)}"
        )
        raise TypeError(f"got an unexpected keyword argument {unknown!r}{hint}")
    if options.get("trust_remote_code"):
        raise RemoteCodeRefusedError(
            "mdir_hf reads tensors and tokenizer files as data and never runs a repository's code; "
            "leave trust_remote_code out"
        )


def named(model: object, options: Mapping[str, Any]) -> NamedModel:
    """Combine a model with the options that describe it, ignoring other options.

    Raises:
        InputError: If an option does not apply to the model.
    """
    model_options = {name: value for name, value in options.items() if name in ModelOptions.__annotations__ and value}
    if isinstance(model, NamedModel):
        return changed(model, model_options)
    adapter = options.get("adapter", True)
    place = options.get("tokenizer")
    if place is not None and not isinstance(place, str | os.PathLike):
        place = load_tokenizer(place)
    if isinstance(model, str | os.PathLike):
        if not adapter:
            raise InputError("adapter=False is for models in memory; name the base model instead", subject=str(model))
        return changed(
            NamedModel(model), {**model_options, "tokenizer": place, "bases": tuple(options.get("bases", ()))}
        )
    for name in ("revision", "subfolder", "variant", "bases"):
        if name in model_options:
            raise InputError(
                f"{name}={model_options[name]!r} was passed with a model in memory, which has none; leave it out"
            )
    if isinstance(place, LoadedRepository):
        return NamedModel(load_model(model, tokenizer=place, adapter=adapter))
    return NamedModel(load_model(model, adapter=adapter), tokenizer=place)


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

    To compare several candidates with one reference, use :class:`HomologyChecker`.

    Args:
        reference: A Hub repository (``owner/name`` or ``owner/name@revision``), a Hub URL, a local folder or a weight
            file. Append ``/folder`` for a subfolder of a repository and ``:name`` to choose a quantisation. You can
            also pass an in-memory ``PreTrainedModel`` or a PEFT model that wraps one. To set a tokenizer, base or
            variant for one model, pass a :class:`~mdir_hf.NamedModel`.
        candidate: The other model.
        settings: Level, significance threshold and other options of the comparison.
        reading: Options for opening repositories.
        listeners: Callbacks that receive progress.
        options: Any field of :class:`Settings`, :class:`Reading` and :class:`Listeners`, such as ``level="layers"``,
            ``token=…`` or ``progress=False``.

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
    return compare_named(first, second, settings=settings, reading=reading, listeners=listeners)


def compare_named(
    reference: NamedModel,
    candidate: NamedModel,
    *,
    settings: Settings,
    reading: Reading,
    listeners: Listeners,
    repeated_sample_seed: int | None = None,
) -> HomologyReport:
    """Open and compare two models; see :func:`~mdir_hf.comparison.run.compare_models`.

    Raises:
        MdirError: If an argument is invalid or the files cannot be read.
    """
    settings = replace(settings, device=available_device(settings.device))
    ledger = IoLedger()
    with ledger.limited(settings.max_bytes):
        watch = Watch(ledger, listeners, from_start=True)
        with watch.listening():
            watch.enter("opening")
            models = open_both(reference, candidate, reading, ledger)
            return compare_models(*models, settings, watch, repeated_sample_seed=repeated_sample_seed)


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
        reference: The model that candidates are compared with.
        settings: Default settings, with ``device`` resolved to an available device.
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

    def __repr__(self) -> str:
        return (
            f"HomologyChecker({self.reference.label!r}, alpha={self.settings.alpha:g}, level={self.settings.level!s})"
        )

    @classmethod
    def from_pretrained(
        cls,
        reference: str | os.PathLike[str] | PreTrainedModel | NamedModel,
        *,
        settings: Settings = Settings(),
        reading: Reading = Reading(),
        **options: Unpack[CheckerOptions],
    ) -> HomologyChecker:
        """Open the reference model. This reads its config, weight index and one header, but no weights.

        Args:
            reference: The model, as in :func:`compare`.
            settings: Default settings for all comparisons.
            reading: Options for opening repositories.
            options: Any field of :class:`Settings`, :class:`Reading` and :class:`NamedModel`, such as ``alpha=1e-6``,
                ``token=…``, ``revision=…`` or ``tokenizer=…``.

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
            options: Any field of :class:`Settings`, :class:`Listeners` and :class:`NamedModel`; also ``token``, which
                defaults to the reference's.

        Returns:
            The report. Its ``io`` counts this comparison and, if it is the first, the opening of the reference.

        Raises:
            MdirError: If an argument is invalid or the files cannot be read.
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
                opened = self._open(model, options.get("token"))
                return compare_models(self.reference, opened, settings, watch)

    def plan(
        self,
        candidate: str | os.PathLike[str] | PreTrainedModel | NamedModel,
        *,
        settings: Settings | None = None,
        **options: Unpack[PlanOptions],
    ) -> ReadPlan:
        """Return what a comparison would read and how much memory it would need.

        This reads the candidate's config, index and one header, but no weights. The files are cached for a later
        :meth:`compare`.

        Args:
            candidate: The model, as in :meth:`compare`.
            settings: Settings for the comparison. Defaults to :attr:`settings`.
            options: Any option of :meth:`compare` except the listeners.

        Returns:
            The plan; ``str(plan)`` is the text that the command line prints.

        Raises:
            MdirError: If the files cannot be read.
        """
        check_keywords(options, PlanOptions)
        settings, model = changed(settings or self.settings, options), named(candidate, options)
        with self._lock:
            opened = self._open(model, options.get("token"))
            plan = plan_comparison(self.reference, opened, settings)
            return replace(plan, opening_bytes=self._ledger.bytes_read + self._ledger.bytes_from_cache)

    def _open(self, model: NamedModel, token: str | bool | None) -> Model:
        reading = self._reading if token is None else replace(self._reading, token=token)
        return model.open(reading, self._ledger)
