"""``HomologyChecker``: the one place that joins files, roles, vocabularies and mathematics."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from mdir_hf.comparison.plan import ReadPlan
from mdir_hf.comparison.planning import plan_comparison
from mdir_hf.comparison.progress import Progress, Watch
from mdir_hf.comparison.run import compare_models
from mdir_hf.comparison.settings import Listeners, Settings, level_named
from mdir_hf.errors import InputError, RemoteCodeRefusedError
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.memory import LoadedRepository, load_model, load_tokenizer
from mdir_hf.model.open import NamedModel, Reading, open_beside, open_both
from mdir_hf.model.opened import Model
from mdir_hf.processor import available_device
from mdir_hf.report import HomologyReport, Level

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


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
        self,
        reference: Model,
        *,
        ledger: IoLedger,
        settings: Settings = Settings(),
        reading: Reading = Reading(),
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
        repo_or_folder: str | os.PathLike[str] | PreTrainedModel,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        force_download: bool = False,
        subfolder: str = "",
        variant: str | None = None,
        tokenizer: str | os.PathLike[str] | PreTrainedTokenizerBase | None = None,
        bases: Sequence[str] = (),
        adapter: bool = True,
        device: str = "cpu",
        alpha: float = 1e-10,
        seed: int = 0,
        allow_local: bool = True,
        use_caches: bool = True,
        public_only: bool = False,
        trust_remote_code: bool = False,
    ) -> HomologyChecker:
        """Open the reference model. Reads its config, the index of its weights and one header; no weights.

        Args:
            repo_or_folder: ``owner/name``, ``owner/name@revision``, a Hub URL, a local folder or weight file; or a
                ``PreTrainedModel``, or a PEFT model on one, in memory. Its parameters are read where they are: see
                :mod:`mdir_hf.model.memory`.
            revision: Branch, tag or commit.
            token: Token for gated and private models; None or True: the stored one, False: none.
            cache_dir: The Hub cache to use; the standard one by default.
            local_files_only: Use no network.
            force_download: Do not use what is cached.
            subfolder: Folder of the repository that holds the model.
            variant: ``fp16`` reads ``model.fp16.safetensors``, ``Q4_K_M`` of several GGUF files the one of that name.
            tokenizer: Repository or folder to read its vocabulary from, where its own has none or another one; or a
                tokenizer of transformers in memory. A model in memory has none of its own.
            bases: Of an adapter: commits at which to read what lies under it, each ``owner/name@commit``, as the
                summary in a report has them; by default what its config asks for.
            adapter: False: of a model in memory with an adapter, what lies under it.
            device: torch device for the matrix products; ``auto``: a CUDA device where there is one, else the CPU.
            alpha: Level of every comparison, in (0, 1), fixed before looking.
            seed: Seed of every random choice, in [0, 2^63).
            allow_local: False: both models must be on the Hub. For servers, where strangers choose the names.
            use_caches: False: no cache on this disk is read or written, for either model. For servers that read with
                somebody's token: what it may read stays with its owner.
            public_only: Refuse what not everybody may read, whatever the token may: of both models, and of the base
                under an adapter. For servers that read with somebody's token what they then keep for everybody.
            trust_remote_code: Refused: tensors and tokenizers are read as data, nothing is executed.

        Raises:
            InputError: If what names the model, or an argument, cannot be used.
            HubError: If the model's files cannot be had.
            CheckpointError: If it has no weights that can be read.
            AnatomyError: If they are not those of a language model.
        """
        if trust_remote_code:
            _refuse_remote_code()
        model = _named(repo_or_folder, revision, subfolder, variant, tokenizer, tuple(bases), adapter)
        reading = Reading(token, cache_dir, local_files_only, force_download, allow_local, use_caches, public_only)
        return cls.open(model, reading, Settings(alpha=alpha, seed=seed, device=device))

    @classmethod
    def open(cls, model: NamedModel, reading: Reading, settings: Settings) -> HomologyChecker:
        """Open the reference model; as :meth:`from_pretrained`, whose arguments these hold.

        Args:
            model: The reference.
            reading: How repositories are opened.
            settings: Of every comparison; each has a level and caps of its own.
        """
        ledger = IoLedger()
        return cls(model.open(reading, ledger), ledger=ledger, settings=settings, reading=reading)

    def compare(
        self,
        repo_or_folder: str | os.PathLike[str] | PreTrainedModel,
        *,
        level: str = "auto",
        revision: str | None = None,
        token: str | bool | None = None,
        subfolder: str = "",
        variant: str | None = None,
        tokenizer: str | os.PathLike[str] | PreTrainedTokenizerBase | None = None,
        bases: Sequence[str] = (),
        adapter: bool = True,
        max_bytes: int | None = None,
        max_memory_bytes: int | None = None,
        progress: bool = True,
        on_plan: Callable[[ReadPlan], None] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        on_found: Callable[[HomologyReport], None] | None = None,
        trust_remote_code: bool = False,
    ) -> HomologyReport:
        """Compare another model with the reference.

        Args:
            repo_or_folder: The candidate, named as in :meth:`from_pretrained`.
            level: ``auto`` looks at more and more tokens and stops at the first decisive look, and goes on to the
                layers where the embeddings do not settle it; ``screen`` stops before the full test; ``embedding``
                always runs the full test on every common token; ``body`` does, and maps and analyses all layers.
            revision: Branch, tag or commit of the candidate.
            token: Its token; the reference's by default.
            subfolder: Folder of the candidate's repository that holds the model.
            variant: Its variant.
            tokenizer: Where to read its vocabulary from, as in :meth:`from_pretrained`.
            bases: At which commits to read what lies under it, likewise.
            adapter: Likewise.
            max_bytes: Hard cap on the bytes that this comparison reads.
            max_memory_bytes: Refuse what would need more; the machine's memory by default.
            progress: Whether to show a bar of bytes on standard error where that is a terminal.
            on_plan: Called with the plan before the weights are read.
            on_progress: Called whenever a stage begins or bytes arrive, from any thread, one call at a time. What it
                raises stops the comparison: an ``MdirError`` as it is, anything else inside a ``StoppedError``.
            on_found: Called with the report that there would be if no more were read: before the unembeddings, before
                the layers, and after every layer that is analysed. The last one is what a comparison that is stopped
                has found; its caveats say what was not looked at.
            trust_remote_code: Refused.

        Returns:
            The report. Its ``io`` counts this comparison; the first one also counts opening the reference.

        Raises:
            MdirError: Where the question cannot be asked or the files cannot be had; "cannot tell" is a verdict.
        """
        if trust_remote_code:
            _refuse_remote_code()
        model = _named(repo_or_folder, revision, subfolder, variant, tokenizer, tuple(bases), adapter)
        settings = replace(
            self.settings, level=level_named(level), max_bytes=max_bytes, max_memory_bytes=max_memory_bytes
        )
        return self.compare_with(model, settings, Listeners(progress, on_plan, on_progress, on_found), token=token)

    def compare_with(
        self, model: NamedModel, settings: Settings, listeners: Listeners, *, token: str | bool | None = None
    ) -> HomologyReport:
        """Compare another model with the reference; as :meth:`compare`, whose arguments these hold.

        Args:
            model: The candidate.
            settings: What is asked.
            listeners: Who is told.
            token: The candidate's token; the reference's by default.
        """
        settings = replace(settings, device=available_device(settings.device))
        with self._lock, self._ledger.limited(settings.max_bytes):
            watch = Watch(self._ledger, listeners, from_start=self._is_first)
            self._is_first = False
            with watch.listening():
                watch.enter("opening")
                candidate = self._open(model, token, settings.level)
                return compare_models(self.reference, candidate, settings, watch)

    @classmethod
    def compare_both(
        cls, reference: NamedModel, candidate: NamedModel, reading: Reading, settings: Settings, listeners: Listeners
    ) -> HomologyReport:
        """Compare two models that are opened at once; as :meth:`open` and :meth:`compare_with`, in fewer round trips.

        Args:
            reference: One model.
            candidate: The other.
            reading: How repositories are opened.
            settings: What is asked. The cap on bytes also holds for opening the reference.
            listeners: Who is told.
        """
        settings = replace(settings, device=available_device(settings.device))
        ledger = IoLedger()
        with ledger.limited(settings.max_bytes):
            watch = Watch(ledger, listeners, from_start=True)
            with watch.listening():
                watch.enter("opening")
                models = open_both(reference, candidate, reading, ledger, settings.level)
                return compare_models(*models, settings, watch)

    def plan(
        self,
        repo_or_folder: str | os.PathLike[str] | PreTrainedModel,
        *,
        level: str = "auto",
        revision: str | None = None,
        token: str | bool | None = None,
        subfolder: str = "",
        variant: str | None = None,
        tokenizer: str | os.PathLike[str] | PreTrainedTokenizerBase | None = None,
        bases: Sequence[str] = (),
        adapter: bool = True,
    ) -> ReadPlan:
        """Say what a comparison would read, and how much memory it would need, before it is run.

        Reads the candidate's config, index and one header, and both tokenizers; no weights. They are cached, so that
        :meth:`compare` does not fetch them again.

        Args:
            repo_or_folder: The candidate, named as in :meth:`from_pretrained`.
            level: As in :meth:`compare`.
            revision: Branch, tag or commit of the candidate.
            token: Its token; the reference's by default.
            subfolder: Folder of the candidate's repository that holds the model.
            variant: Its variant.
            tokenizer: Where to read its vocabulary from, as in :meth:`from_pretrained`.
            bases: At which commits to read what lies under it, likewise.
            adapter: Likewise.

        Returns:
            The plan; its text is what the command line prints.

        Raises:
            MdirError: Where the files cannot be had.
        """
        model = _named(repo_or_folder, revision, subfolder, variant, tokenizer, tuple(bases), adapter)
        asked = level_named(level)
        with self._lock:
            return plan_comparison(self.reference, self._open(model, token, asked), asked, self.settings.alpha)

    def _open(self, model: NamedModel, token: str | bool | None, level: Level) -> Model:
        reading = self._reading if token is None else replace(self._reading, token=token)
        return open_beside(self.reference, model, reading, self._ledger, level)


def compare(
    reference: str | os.PathLike[str] | PreTrainedModel,
    candidate: str | os.PathLike[str] | PreTrainedModel,
    *,
    level: str = "auto",
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    force_download: bool = False,
    device: str = "cpu",
    alpha: float = 1e-10,
    seed: int = 0,
    allow_local: bool = True,
    use_caches: bool = True,
    public_only: bool = False,
    max_bytes: int | None = None,
    max_memory_bytes: int | None = None,
    progress: bool = True,
    on_plan: Callable[[ReadPlan], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_found: Callable[[HomologyReport], None] | None = None,
) -> HomologyReport:
    """Compare two models that are opened at once: fewer round trips to the Hub than one after the other.

    For several candidates, or a tokenizer, base or variant of its own for each model, make a :class:`HomologyChecker`.

    Args:
        reference: One model, named as in :meth:`HomologyChecker.from_pretrained`: a revision follows ``@``, a folder
            ``/``, one of several quantisations ``:``.
        candidate: The other.
        level: As in :meth:`HomologyChecker.compare`.
        token: Of both; as in :meth:`HomologyChecker.from_pretrained`, like all up to ``public_only``.
        cache_dir: The Hub cache to use.
        local_files_only: Use no network.
        force_download: Do not use what is cached.
        device: torch device for the matrix products.
        alpha: Level of the comparison, in (0, 1), fixed before looking.
        seed: Seed of every random choice, in [0, 2^63).
        allow_local: False: both models must be on the Hub.
        use_caches: False: no cache on this disk is read or written.
        public_only: Refuse what not everybody may read.
        max_bytes: Hard cap on the bytes that are read, opening included.
        max_memory_bytes: As in :meth:`HomologyChecker.compare`, like all that follows.
        progress: Whether to show a bar of bytes.
        on_plan: Called with the plan before the weights are read.
        on_progress: Called whenever a stage begins or bytes arrive.
        on_found: Called with what was found so far.

    Returns:
        The report.

    Raises:
        MdirError: Where the question cannot be asked or the files cannot be had; "cannot tell" is a verdict.

    Examples:
        >>> from mdir_hf import compare
        >>> compare("Qwen/Qwen2.5-0.5B", "someone/their-model", progress=False).verdict.value
        'homologous'
    """
    named = [_named(model, None, "", None, None, (), True) for model in (reference, candidate)]
    reading = Reading(token, cache_dir, local_files_only, force_download, allow_local, use_caches, public_only)
    settings = Settings(
        level_named(level),
        alpha=alpha,
        seed=seed,
        device=device,
        max_bytes=max_bytes,
        max_memory_bytes=max_memory_bytes,
    )
    listeners = Listeners(progress, on_plan, on_progress, on_found)
    return HomologyChecker.compare_both(named[0], named[1], reading, settings, listeners)


def _named(
    model: object,
    revision: str | None,
    subfolder: str,
    variant: str | None,
    tokenizer: object,
    bases: tuple[str, ...],
    adapter: bool,
) -> NamedModel:
    """Put together what names a model; what is in memory is taken as it is."""
    place = tokenizer if tokenizer is None or isinstance(tokenizer, str | os.PathLike) else load_tokenizer(tokenizer)
    if isinstance(model, str | os.PathLike):
        if not adapter:
            raise InputError("adapter=False is for models in memory; name the base model instead", subject=str(model))
        return NamedModel(model, revision, subfolder, variant, place, bases)
    said = {"revision": revision, "subfolder": subfolder, "variant": variant, "bases": bases}
    for name, value in said.items():
        if value:
            raise InputError(f"{name}={value!r} was passed with a model in memory, which has none; leave it out")
    if isinstance(place, LoadedRepository):
        return NamedModel(load_model(model, tokenizer=place, adapter=adapter))
    return NamedModel(load_model(model, adapter=adapter), tokenizer=place)


def _refuse_remote_code() -> NoReturn:
    raise RemoteCodeRefusedError(
        "mdir_hf reads tensors and tokenizer files as data and never runs a repository's code; "
        "leave trust_remote_code out"
    )
