"""``HomologyChecker``: the one place that joins files, roles, vocabularies and mathematics."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from mdir_hf.comparison.bases import open_bases_at
from mdir_hf.comparison.model import Model
from mdir_hf.comparison.plan import ReadPlan
from mdir_hf.comparison.progress import Progress, Watch
from mdir_hf.comparison.reading import IoCount
from mdir_hf.comparison.settings import Settings
from mdir_hf.comparison.steps import compare_models, plan_comparison
from mdir_hf.errors import InputError, RemoteCodeRefusedError
from mdir_hf.hub import IoLedger, open_repository
from mdir_hf.report import HomologyReport

LEVELS = ("auto", "screen", "embedding", "body")


class HomologyChecker:
    """Holds a reference model and compares others with it.

    Example:
        >>> checker = HomologyChecker.from_pretrained("Qwen/Qwen2.5-0.5B")  # doctest: +SKIP
        >>> print(checker.compare("someone/their-model"))  # doctest: +SKIP

    Use :meth:`from_pretrained`. One checker compares one candidate at a time; calls from several threads queue.
    """

    def __init__(
        self,
        reference: Model,
        *,
        ledger: IoLedger,
        alpha: float = 1e-10,
        seed: int = 0,
        device: str = "cpu",
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        force_download: bool = False,
        allow_local: bool = True,
        use_caches: bool = True,
    ) -> None:
        if not 0.0 < alpha < 1.0:
            raise InputError(f"alpha must lie between 0 and 1, got {alpha}")
        self.reference = reference
        self.alpha = alpha
        self.seed = seed
        self.device = _available_device(device)
        self._ledger = ledger
        self._is_first = True
        self._lock = threading.Lock()
        self._token = token
        self._cache_dir = cache_dir
        self._local_files_only = local_files_only
        self._force_download = force_download
        self._allow_local = allow_local
        self._use_caches = use_caches

    @classmethod
    def from_pretrained(
        cls,
        repo_or_folder: str | os.PathLike[str],
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        force_download: bool = False,
        subfolder: str = "",
        variant: str | None = None,
        tokenizer: str | os.PathLike[str] | None = None,
        bases: Sequence[str] = (),
        device: str = "cpu",
        alpha: float = 1e-10,
        seed: int = 0,
        allow_local: bool = True,
        use_caches: bool = True,
        trust_remote_code: bool = False,
    ) -> HomologyChecker:
        """Open the reference model. Reads its config, the index of its weights and one header; no weights.

        Args:
            repo_or_folder: ``owner/name``, ``owner/name@revision``, a Hub URL, a local folder or weight file.
            revision: Branch, tag or commit.
            token: Token for gated and private models; None or True: the stored one, False: none.
            cache_dir: The Hub cache to use; the standard one by default.
            local_files_only: Use no network.
            force_download: Do not use what is cached.
            subfolder: Folder of the repository that holds the model.
            variant: ``fp16`` reads ``model.fp16.safetensors``, ``Q4_K_M`` of several GGUF files the one of that name.
            tokenizer: Repository or folder to read its vocabulary from, where its own has none or another one.
            bases: Of an adapter: commits at which to read what lies under it, each ``owner/name@commit``, as the
                summary in a report has them; by default what its config asks for.
            device: torch device for the matrix products; ``auto``: a CUDA device where there is one, else the CPU.
            alpha: Level of every comparison, in (0, 1), fixed before looking.
            seed: Seed of every random choice.
            allow_local: False: both models must be on the Hub. For servers, where strangers choose the names.
            use_caches: False: no cache on this disk is read or written, for either model. For servers that read with
                somebody's token: what it may read stays with its owner.
            trust_remote_code: Refused: tensors and tokenizers are read as data, nothing is executed.

        Raises:
            InputError: If what names the model, or an argument, cannot be used.
            HubError: If the model's files cannot be had.
            CheckpointError: If it has no weights that can be read.
            AnatomyError: If they are not those of a language model.
        """
        if trust_remote_code:
            _refuse_remote_code()
        ledger = IoLedger()
        open_one = partial(
            open_repository,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            force_download=force_download,
            allow_local=allow_local,
            use_caches=use_caches,
            ledger=ledger,
        )
        repository = open_one(repo_or_folder, revision=revision, subfolder=subfolder)
        return cls(
            Model(
                repository,
                variant=variant,
                tokenizer=None if tokenizer is None else open_one(tokenizer),
                open_other=open_bases_at(open_one, bases),
            ),
            ledger=ledger,
            alpha=alpha,
            seed=seed,
            device=device,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            force_download=force_download,
            allow_local=allow_local,
            use_caches=use_caches,
        )

    def compare(
        self,
        repo_or_folder: str | os.PathLike[str],
        *,
        level: str = "auto",
        revision: str | None = None,
        token: str | bool | None = None,
        subfolder: str = "",
        variant: str | None = None,
        tokenizer: str | os.PathLike[str] | None = None,
        bases: Sequence[str] = (),
        max_bytes: int | None = None,
        max_memory_bytes: int | None = None,
        progress: bool = True,
        on_plan: Callable[[ReadPlan], None] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        trust_remote_code: bool = False,
    ) -> HomologyReport:
        """Compare another model with the reference.

        Args:
            repo_or_folder: The candidate, named as in :meth:`from_pretrained`.
            level: ``auto`` looks at more and more tokens and stops at the first decisive look, and goes on to the
                layers where the embeddings are silent; ``screen`` stops before the full test; ``embedding`` always
                runs the full test on every common token; ``body`` does, and maps and analyses all layers.
            revision: Branch, tag or commit of the candidate.
            token: Its token; the reference's by default.
            subfolder: Folder of the candidate's repository that holds the model.
            variant: Its variant.
            tokenizer: Where to read its vocabulary from, as in :meth:`from_pretrained`.
            bases: At which commits to read what lies under it, likewise.
            max_bytes: Hard cap on the bytes that this comparison reads.
            max_memory_bytes: Refuse what would need more; the machine's memory by default.
            progress: Whether to show a bar of bytes on standard error where that is a terminal.
            on_plan: Called with the plan before the weights are read.
            on_progress: Called whenever a stage begins or bytes arrive, from any thread, one call at a time. What it
                raises stops the comparison: an ``MdirError`` as it is, anything else inside a ``StoppedError``.
            trust_remote_code: Refused.

        Returns:
            The report. Its ``io`` counts this comparison; the first one also counts opening the reference.

        Raises:
            MdirError: Where the question cannot be asked or the files cannot be had; "cannot tell" is a verdict.
        """
        if trust_remote_code:
            _refuse_remote_code()
        _check_level(level)
        with self._lock:
            io = IoCount(self._ledger, from_start=self._is_first)
            self._is_first = False
            self._ledger.max_bytes = None if max_bytes is None else self._ledger.bytes_read + max_bytes
            watch = Watch(on_progress)
            settings = Settings(
                level=level,
                alpha=self.alpha,
                seed=self.seed,
                device=self.device,
                max_memory_bytes=max_memory_bytes,
                progress=progress,
                on_plan=on_plan,
                watch=watch,
            )
            with watch.over(self._ledger):
                watch.enter("opening")
                candidate = self._open(
                    repo_or_folder,
                    revision=revision,
                    token=token,
                    subfolder=subfolder,
                    variant=variant,
                    tokenizer=tokenizer,
                    bases=bases,
                )
                return compare_models(self.reference, candidate, io, settings)

    def plan(
        self,
        repo_or_folder: str | os.PathLike[str],
        *,
        level: str = "auto",
        revision: str | None = None,
        token: str | bool | None = None,
        subfolder: str = "",
        variant: str | None = None,
        tokenizer: str | os.PathLike[str] | None = None,
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

        Returns:
            The plan; its text is what the command line prints.

        Raises:
            MdirError: Where the files cannot be had.
        """
        _check_level(level)
        with self._lock:
            candidate = self._open(
                repo_or_folder,
                revision=revision,
                token=token,
                subfolder=subfolder,
                variant=variant,
                tokenizer=tokenizer,
            )
            return plan_comparison(self.reference, candidate, level=level)

    def _open(
        self,
        repo_or_folder: str | os.PathLike[str],
        *,
        revision: str | None,
        token: str | bool | None,
        subfolder: str,
        variant: str | None,
        tokenizer: str | os.PathLike[str] | None,
        bases: Sequence[str] = (),
    ) -> Model:
        open_one = partial(
            open_repository,
            token=self._token if token is None else token,
            cache_dir=self._cache_dir,
            local_files_only=self._local_files_only,
            force_download=self._force_download,
            allow_local=self._allow_local,
            use_caches=self._use_caches,
            ledger=self._ledger,
        )
        repository = open_one(repo_or_folder, revision=revision, subfolder=subfolder)
        return Model(
            repository,
            variant=variant,
            tokenizer=None if tokenizer is None else open_one(tokenizer),
            open_other=open_bases_at(open_one, bases),
        )


def _check_level(level: str) -> None:
    if level not in LEVELS:
        raise InputError(f"level {level!r} is not known; choose from {', '.join(LEVELS)}")


def _available_device(device: str) -> str:
    import torch

    if device == "auto":
        # Not every accelerator will do: the small factors are float64, which Apple's does not have.
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, AssertionError, TypeError) as exc:
        reason = str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
        raise InputError(
            f"device {device!r} cannot be used here ({reason}); choose cpu, auto, or a device of this machine"
        ) from exc
    return device


def _refuse_remote_code() -> NoReturn:
    raise RemoteCodeRefusedError(
        "mdir_hf reads tensors and tokenizer files as data and never runs a repository's code; "
        "leave trust_remote_code out"
    )
