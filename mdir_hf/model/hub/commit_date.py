"""The date of a commit, as the Hub states it."""

from __future__ import annotations

from datetime import datetime, timezone
from urllib.parse import quote

from mdir_hf.errors import HubError
from mdir_hf.model.hub.api import ask
from mdir_hf.model.hub.endpoint import current_endpoint, is_offline


def commit_date(repo: str, commit: str, *, token: str | bool | None = None) -> datetime | None:
    """Ask the Hub when a commit was made.

    Args:
        repo: ``owner/name``.
        commit: Its full sha.
        token: As the Hub client takes it.

    Returns:
        The date in UTC, None if the Hub cannot be asked or does not state it. Cost: one API request.
    """
    if is_offline():
        return None
    endpoint = current_endpoint()
    url = f"{endpoint}/api/models/{repo}/commits/{quote(commit, safe='')}"
    try:
        commits, _ = ask(url, label=f"{repo}@{commit[:7]}", endpoint=endpoint, token=token, revision=commit)
    except HubError:
        return None
    newest = commits[0] if isinstance(commits, list) and commits else None
    if not isinstance(newest, dict) or newest.get("id") != commit:
        return None
    return parsed_date(newest.get("date"))


def parsed_date(text: object) -> datetime | None:
    """Return a date of the Hub's API, ``2026-11-26T17:00:00.000Z``, in UTC and whole seconds; None if it is none."""
    if not isinstance(text, str) or len(text) > 40:
        return None
    try:
        date = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    if date.tzinfo is None:
        return None
    try:
        return date.astimezone(timezone.utc).replace(microsecond=0)
    except OverflowError:
        return None
