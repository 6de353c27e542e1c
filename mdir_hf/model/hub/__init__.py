"""Resolve model names to files on the Hub, pinned to a commit.

``HF_ENDPOINT``, ``HF_HUB_OFFLINE`` and ``MDIR_HF_CACHE`` are read whenever a repository is opened, not at import.
"""

# ruff: noqa: E402  the environment is checked before the client is imported, because the client reads it at import

from mdir_hf.model.hub.endpoint import check_environment

check_environment()

from mdir_hf.model.hub.ledger import IoLedger
from mdir_hf.model.hub.local import LocalFile, LocalRepository
from mdir_hf.model.hub.model_info import ModelList, models_of_author, models_of_collection
from mdir_hf.model.hub.ranges import HubFile
from mdir_hf.model.hub.reference import Reference, parse_reference
from mdir_hf.model.hub.remote import HubRepository, RepositoryOptions
from mdir_hf.model.hub.repository import Repository, ResolvedModel, open_repository, resolve_model

__all__ = [
    "HubFile",
    "HubRepository",
    "IoLedger",
    "LocalFile",
    "LocalRepository",
    "ModelList",
    "Reference",
    "Repository",
    "RepositoryOptions",
    "ResolvedModel",
    "models_of_author",
    "models_of_collection",
    "open_repository",
    "parse_reference",
    "resolve_model",
]
