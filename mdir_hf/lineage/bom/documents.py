"""Write bills of materials for this package's results."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from mdir_hf.errors import CardError, HubError, InputError
from mdir_hf.lineage.bom.write import bom_json, records_of_check, records_of_family, records_of_report
from mdir_hf.lineage.cards.declared import README
from mdir_hf.lineage.cards.front_matter import MOST_BYTES, parse_card, read_metadata
from mdir_hf.lineage.cards.verify_lineage import LineageCheck
from mdir_hf.lineage.family import Family
from mdir_hf.model.hub import Repository
from mdir_hf.model.hub.model_info import commit_date
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.names import is_repo_id
from mdir_hf.report import HomologyReport, ModelFacts, ModelSummary, WeightFile

_BLOCK = 8 << 20
_HASHED_FROM_HUB = 16 << 20
"""Maximum size of a file to read from the Hub if no digest is listed. Such files are in git, which limits them to 10
MB."""


def facts_of_summary(model: ModelSummary) -> ModelFacts:
    """Return a model's name and commit, as stated in a report."""
    if model.commit is not None and is_repo_id(model.repo):
        return ModelFacts(repo=model.repo, name=model.repo, commit=model.commit)
    return ModelFacts(repo=None, name=Path(model.repo).name or "model", commit=None)


def read_model_facts(model: NamedModel, *, reading: Reading = Reading()) -> ModelFacts:
    """Read a model's name, digests, licence and date.

    Digests come from the Hub's listing or, for a folder, are computed from its weight files.

    Args:
        model: The model.
        reading: How its repository is opened.

    Raises:
        MdirError: If the model cannot be opened.
    """
    opened = model.open(reading)
    repository, weights = opened.repository, opened.weights
    files = tuple(WeightFile(path, _sha256(weights.repository, path)) for path in weights.paths)
    licence = _declared_licence(repository)
    if repository.commit is None or not is_repo_id(repository.repo):
        return ModelFacts(
            repo=None, name=Path(repository.repo).name or "model", commit=None, files=files, licence=licence
        )
    is_online = not reading.local_files_only
    return ModelFacts(
        repo=repository.repo,
        name=repository.repo,
        commit=repository.commit,
        files=files,
        licence=licence,
        date=commit_date(repository.repo, repository.commit, token=reading.token) if is_online else None,
    )


def _sha256(repository: Repository, path: str) -> str | None:
    entry = repository.files.get(path)
    if entry is None or entry.sha256 is not None:
        return None if entry is None else entry.sha256
    if not repository.is_local and not 0 <= entry.n_bytes <= _HASHED_FROM_HUB:
        return None
    try:
        source, digest = repository.open(path), hashlib.sha256()
        for start in range(0, source.n_bytes, _BLOCK):
            digest.update(source.read(start, min(start + _BLOCK, source.n_bytes)))
    except HubError:
        return None
    return digest.hexdigest()


def _declared_licence(repository: Repository) -> str | None:
    if README not in repository.files:
        return None
    subject = f"{repository.label}:{README}"
    metadata: Mapping[str, Any] = {}
    try:
        card = parse_card(repository.read(README, max_bytes=MOST_BYTES), subject=subject)
        metadata = read_metadata(card, subject=subject)
    except (CardError, HubError):
        return None
    value = metadata.get("license")
    if isinstance(value, list):
        value = value[0] if len(value) == 1 else " AND ".join(str(licence) for licence in value)
    if value == "other":
        value = metadata.get("license_name") or value
    return value if isinstance(value, str) and value.strip() else None


def make_bom(
    result: HomologyReport | LineageCheck | Family,
    facts: ModelFacts | None = None,
    *,
    version: str = "1.6",
    timestamp: datetime | None = None,
) -> str:
    """Write a CycloneDX bill of materials (needs ``mdir-hf[bom]``).

    A base that a model declares is listed as an ancestor if the weights confirm it, the reference of a report as a
    variant unless the model is an adapter on it.

    Args:
        result: A report, whose candidate the document is about, or the result of ``verify`` or ``family``.
        facts: Digests, licence and date of the model, from :func:`read_model_facts`. Only a report can do without.
        version: CycloneDX version, 1.6 or 1.7.
        timestamp: Date of the document, with a time zone; defaults to the date of the facts.

    Returns:
        The JSON text; the same result always gives the same bytes.

    Raises:
        InputError: If the version is neither 1.6 nor 1.7, or the facts are missing.
        MissingExtraError: If cyclonedx-python-lib is not installed.
    """
    if isinstance(result, HomologyReport):
        model = facts or facts_of_summary(result.candidate)
        return bom_json(model, records_of_report(result), version=version, timestamp=timestamp)
    if facts is None:
        raise InputError("a bill of materials needs the facts of its model; read them with read_model_facts")
    records = records_of_family(result) if isinstance(result, Family) else records_of_check(result)
    return bom_json(facts, records, version=version, timestamp=timestamp)
