"""The options of a comparison, as keywords and as objects."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from mdir_hf.comparison.plan import ReadPlan
from mdir_hf.comparison.progress import Progress
from mdir_hf.errors import InputError, RemoteCodeRefusedError
from mdir_hf.model.memory import LoadedRepository, load_model, load_tokenizer
from mdir_hf.model.open import NamedModel
from mdir_hf.report import HomologyReport, Level

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")


class ModelOptions(TypedDict, total=False):
    """Keywords that name a model beside its repository or folder: those of :class:`~mdir_hf.model.open.NamedModel`.

    Attributes:
        revision: Branch, tag or commit.
        subfolder: Folder of the repository that holds the model.
        variant: ``fp16`` reads ``model.fp16.safetensors``, ``Q4_K_M`` of several GGUF files the one of that name.
        tokenizer: Repository or folder with its vocabulary, if its own has none or another one; or a
            tokenizer of transformers in memory. A model in memory has none of its own.
        bases: For an adapter: commits of the models under it, each ``owner/name@commit``, as in the summary of
            a report; by default those in its config.
        adapter: False: compare the model under the adapter of a model in memory.
        trust_remote_code: Refused: tensors and tokenizers are read as data, nothing is executed.
    """

    revision: str | None
    subfolder: str
    variant: str | None
    tokenizer: str | os.PathLike[str] | PreTrainedTokenizerBase | None
    bases: Sequence[str]
    adapter: bool
    trust_remote_code: bool


class ReadingOptions(TypedDict, total=False):
    """Keywords for opening repositories: the fields of :class:`~mdir_hf.model.open.Reading`."""

    token: str | bool | None
    cache_dir: str | os.PathLike[str] | None
    local_files_only: bool
    force_download: bool
    allow_local: bool
    use_caches: bool
    public_only: bool


class SettingsOptions(TypedDict, total=False):
    """Keywords for the settings of a comparison: the fields of :class:`~mdir_hf.comparison.settings.Settings`."""

    level: Level | str
    alpha: float
    seed: int
    device: str
    max_bytes: int | None
    max_memory_bytes: int | None
    sample_seed: int | None
    layers: Sequence[int]


class ListenersOptions(TypedDict, total=False):
    """Keywords for callbacks: the fields of :class:`~mdir_hf.comparison.settings.Listeners`."""

    progress: bool
    on_plan: Callable[[ReadPlan], None] | None
    on_progress: Callable[[Progress], None] | None
    on_found: Callable[[HomologyReport], None] | None


class CheckerOptions(ModelOptions, ReadingOptions, SettingsOptions, total=False):
    """Keywords of :meth:`HomologyChecker.from_pretrained`."""


class CandidateOptions(ModelOptions, SettingsOptions, ListenersOptions, total=False):
    """Keywords of :meth:`HomologyChecker.compare`.

    Attributes:
        token: The candidate's token; the reference's by default.
    """

    token: str | bool | None


class PlanOptions(ModelOptions, SettingsOptions, total=False):
    """Keywords of :meth:`HomologyChecker.plan`; the token is the candidate's."""

    token: str | bool | None


class CompareOptions(ReadingOptions, SettingsOptions, ListenersOptions, total=False):
    """Keywords of :func:`compare`."""


def changed(held: T, options: Mapping[str, Any]) -> T:
    """Return an object of options with the fields replaced for which there are keywords.

    Args:
        held: A frozen dataclass.
        options: Keywords, those of other objects among them.
    """
    names = {field.name for field in fields(held)}  # type: ignore[arg-type]
    given = {name: value for name, value in options.items() if name in names}
    return replace(held, **given) if given else held  # type: ignore[type-var]


def check_keywords(options: Mapping[str, Any], known: type) -> None:
    """Refuse keywords that a function does not have, as Python does.

    Args:
        options: The keywords.
        known: The TypedDict of the known keywords.

    Raises:
        TypeError: If there is another one.
        RemoteCodeRefusedError: If ``trust_remote_code`` is true.
    """
    unknown = next((name for name in options if name not in known.__annotations__), None)
    if unknown is not None:
        raise TypeError(f"got an unexpected keyword argument {unknown!r}; known are {', '.join(known.__annotations__)}")
    if options.get("trust_remote_code"):
        raise RemoteCodeRefusedError(
            "mdir_hf reads tensors and tokenizer files as data and never runs a repository's code; "
            "leave trust_remote_code out"
        )


def named(model: object, options: Mapping[str, Any]) -> NamedModel:
    """Combine the keywords that name a model; a model in memory is used as it is.

    Args:
        model: A name, a folder, a model in memory, or a :class:`~mdir_hf.model.open.NamedModel`.
        options: Keywords, those of other objects among them.

    Raises:
        InputError: If the keywords do not fit the model.
    """
    given = {name: value for name, value in options.items() if name in ModelOptions.__annotations__ and value}
    if isinstance(model, NamedModel):
        return changed(model, given)
    adapter = options.get("adapter", True)
    place = options.get("tokenizer")
    if place is not None and not isinstance(place, str | os.PathLike):
        place = load_tokenizer(place)
    if isinstance(model, str | os.PathLike):
        if not adapter:
            raise InputError("adapter=False is for models in memory; name the base model instead", subject=str(model))
        return changed(NamedModel(model), {**given, "tokenizer": place, "bases": tuple(options.get("bases", ()))})
    for name in ("revision", "subfolder", "variant", "bases"):
        if name in given:
            raise InputError(f"{name}={given[name]!r} was passed with a model in memory, which has none; leave it out")
    if isinstance(place, LoadedRepository):
        return NamedModel(load_model(model, tokenizer=place, adapter=adapter))
    return NamedModel(load_model(model, adapter=adapter), tokenizer=place)
