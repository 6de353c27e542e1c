"""Read the base models that a model card declares."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from mdir_hf.errors import InvalidReferenceError
from mdir_hf.lineage.cards import RELATIONS
from mdir_hf.lineage.cards.front_matter import MOST_BYTES, parse_card, read_metadata
from mdir_hf.model.hub import Repository, RepositoryOptions, open_repository, parse_reference
from mdir_hf.names import is_repo_id, quoted

README = "README.md"
ADAPTER_CONFIG = "adapter_config.json"

_MOST_CONFIG_BYTES = 1 << 20
_WEIGHTS = re.compile(r"(model|pytorch_model|consolidated)[^/]*\.(safetensors|bin|pth?)|[^/]+\.gguf", re.I)


@dataclass(frozen=True, slots=True)
class DeclaredLineage:
    """The bases that a model's card or adapter config declares.

    Attributes:
        commit: Commit that was read; None for a local folder.
        base_models: Repo ids of the bases, without duplicates.
        relation: finetune, merge, quantized or adapter; None if unspecified.
        source: File that contains the declaration, ``README.md`` or ``adapter_config.json``, or None.
        ignored: Invalid declarations as printable ASCII.
        is_adapter: Whether the repository contains an adapter but no full model.
        adapter_of: Repo id of the base named in the adapter config, or None.
    """

    repo: str
    commit: str | None
    base_models: tuple[str, ...]
    relation: str | None
    source: str | None
    new_version: str | None
    ignored: tuple[str, ...]
    is_adapter: bool
    adapter_of: str | None = None
    has_card: bool = True


def declared_lineage(
    repo: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    use_caches: bool = True,
    public_only: bool = False,
) -> DeclaredLineage:
    """Read a model's declared bases: ``base_model`` in its card, or the base in its adapter config.

    Sends one API request, and reads one or two small files.

    Args:
        repo: ``owner/name``, ``owner/name@revision``, a Hub URL, or a local folder.
        revision: Branch, tag or commit.
        token: Hub token.
        cache_dir: Hub cache; None for the default.
        local_files_only: Whether to send no requests.
        use_caches: Whether to use caches on disk.
        public_only: Whether to reject repositories that are not public.

    Returns:
        The declaration; only valid repo ids are included.

    Raises:
        CardError: If the card's front matter cannot be read.
        InputError: If the reference is invalid.
        HubError: If files cannot be read from the Hub.
    """
    repository = open_repository(
        repo,
        RepositoryOptions(
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            use_caches=use_caches,
            public_only=public_only,
        ),
        revision=revision,
    )
    return declared_in(repository)


def declared_in(repository: Repository) -> DeclaredLineage:
    """Read the declaration of an open repository; see :func:`declared_lineage`."""
    metadata: Mapping[str, Any] = {}
    if README in repository.files:
        subject = f"{repository.label}:{README}"
        card = parse_card(repository.read(README, max_bytes=MOST_BYTES), subject=subject)
        metadata = read_metadata(card, subject=subject)
    declared = _of_metadata(repository, metadata)
    if ADAPTER_CONFIG not in repository.files:
        return declared
    try:
        config = json.loads(repository.read(ADAPTER_CONFIG, max_bytes=_MOST_CONFIG_BYTES))
    except (ValueError, RecursionError):
        return replace(declared, ignored=(*declared.ignored, f"{ADAPTER_CONFIG}: not JSON"))
    base = _hub_id(config.get("base_model_name_or_path")) if isinstance(config, dict) else None
    if base is None or declared.base_models:
        return replace(declared, adapter_of=base)
    relation = declared.relation or "adapter"
    return replace(declared, adapter_of=base, base_models=(base,), relation=relation, source=ADAPTER_CONFIG)


def _of_metadata(repository: Repository, metadata: Mapping[str, Any]) -> DeclaredLineage:
    ignored: list[str] = []

    def hub_id(field: str, value: object) -> str | None:
        repo_id = _hub_id(value)
        if repo_id is None:
            ignored.append(f"{field}: {quoted(value, 100)}")
        return repo_id

    value = metadata.get("base_model")
    values = value if isinstance(value, list) else [] if value is None else [value]
    bases = dict.fromkeys(
        base for base in (hub_id("base_model", base_model) for base_model in values) if base is not None
    )
    relation = metadata.get("base_model_relation")
    if relation is not None and relation not in RELATIONS:
        ignored.append(f"base_model_relation: {quoted(relation, 100)}")
    new_version = metadata.get("new_version")
    names = {PurePosixPath(path).name for path in repository.files if "/" not in path}
    return DeclaredLineage(
        repo=repository.repo,
        commit=repository.commit,
        base_models=tuple(bases),
        relation=relation if relation in RELATIONS else None,
        source=README if bases else None,
        new_version=None if new_version is None else hub_id("new_version", new_version),
        ignored=tuple(ignored),
        is_adapter=ADAPTER_CONFIG in names and not any(_WEIGHTS.fullmatch(name) for name in names),
        has_card=README in repository.files,
    )


def _hub_id(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    text = value.strip()
    if text.startswith(("http://", "https://")):
        try:
            return parse_reference(text).repo_id
        except InvalidReferenceError:
            return None
    return text if is_repo_id(text) else None
