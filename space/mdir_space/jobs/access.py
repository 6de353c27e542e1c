"""Resolve a question's models to commits, and choose the token to read them with.

Public models are read through the caches, and their results are cached for all visitors. The Hub allows more requests
from an account than from an IP address, and Spaces share addresses. Requests for public models therefore use the
visitor's token or, if there is none, a token without scopes that the owner of the Space may set. Private and gated
models are read only with the visitor's token, without any cache, and only that visitor gets the results. The server's
own token (``HF_TOKEN``) is never used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from mdir_hf import MdirError
from mdir_hf.errors import RepositoryNotFoundError, SeveralModelsError
from mdir_hf.model.hub.repository import ResolvedModel, resolve_model
from mdir_space.jobs.question import Question, RefusedError, shortened

TOKEN_VARIABLE = "MDIR_SPACE_TOKEN"
"""Environment variable for a token without scopes, which raises a Space's rate limit on the Hub."""


MAX_CHOICES = 40
"""Maximum number of files to offer if a repository contains several models."""

ASKED_AT_A_TIME = 4
"""Number of concurrent requests to the Hub for one visitor."""


@dataclass(frozen=True)
class Access:
    """Models pinned to commits, and how they may be read.

    Attributes:
        models: The models, in the order of the question.
        token: Token to read the models with, or None.
        is_private: Whether the models are read with the visitor's token and without any cache. If False, only public
            models are read, even if the token could open others.
        is_shared: Whether all visitors may see the result.
        left_out: For each name missing from ``models``, the reason.
    """

    models: tuple[ResolvedModel, ...]
    token: str | None = field(default=None, repr=False)
    is_private: bool = False
    is_shared: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict)

    def files_of(self, exc: SeveralModelsError) -> dict[str, tuple[str, ...]]:
        """Return the names of the files listed in an error, keyed by the model's name in the question."""
        for model in self.models:
            if model.commit is not None and (exc.subject or "").startswith(model.repo):
                named = model.repo if model.revision is None else f"{model.repo}@{model.revision}"
                return {named: tuple(f"{named}/{file}" for file in exc.files[:MAX_CHOICES])}
        return {}

    @property
    def is_with_rights(self) -> bool:
        """Whether the visitor's own token is used, which may open an adapter's base or a declared base."""
        return self.token not in (None, token_of_space())

    @property
    def reference(self) -> ResolvedModel:
        """The first of two models."""
        return self.models[0]

    @property
    def candidate(self) -> ResolvedModel:
        """The second of two models."""
        return self.models[1]


def find_access(
    question: Question,
    token: str | None,
    *,
    allow_local: bool,
    may_sign_in: bool,
    may_lack: bool = False,
    served: tuple[str, ...] = (),
) -> Access:
    """Find the models of a question, and determine how they may be read.

    If ``may_lack``, missing models are left out as long as one model remains. ``served`` lists all models of a demo's
    Hub; it is empty for other Hubs. Sends one API request per model, and one more for each token that the Hub rejects.

    Raises:
        RefusedError: If this visitor cannot read a model.
    """

    def find(text: str) -> tuple[ResolvedModel, str | None] | RefusedError:
        try:
            return _find(text, token, allow_local=allow_local, may_sign_in=may_sign_in)
        except RefusedError as refused:
            if refused.is_absent and served:
                return RefusedError(
                    f"{shortened(text)} is not a model of this demo, which serves only {', '.join(served)}.",
                    is_absent=True,
                )
            return refused

    with ThreadPoolExecutor(ASKED_AT_A_TIME) as threads:
        answers = dict(zip(question.names, threads.map(find, question.names), strict=True))
    refused = {text: answer for text, answer in answers.items() if isinstance(answer, RefusedError)}
    resolved_models = [answer for text in question.names if not isinstance(answer := answers[text], RefusedError)]
    if refused and not (may_lack and resolved_models):
        raise next(iter(refused.values()))
    models = [model for model, _ in resolved_models]
    is_private = any(not model.is_public and model.commit is not None for model in models)
    accepted = [using for model, using in resolved_models if model.commit is not None]
    for_all = accepted[0] if accepted and all(using == accepted[0] for using in accepted) else None
    return Access(
        tuple(models),
        token=token if is_private else for_all,
        is_private=is_private,
        is_shared=all(model.is_public for model in models),
        left_out={text: answer.message for text, answer in refused.items()},
    )


def token_of_space() -> str | None:
    """Return the token that the owner of this Space set for public models."""
    return os.environ.get(TOKEN_VARIABLE, "").strip() or None


def _find(text: str, token: str | None, *, allow_local: bool, may_sign_in: bool) -> tuple[ResolvedModel, str | None]:
    """Return the model and the token that the Hub accepted."""
    try:
        model, using = _resolve(text, token, allow_local=allow_local)
    except RepositoryNotFoundError as exc:
        why = "There is no such model, or it is private" if token is None else "There is no such model for your account"
        raise RefusedError(
            f"{shortened(text)} was not found on the Hub. {why}. Check the spelling: names are case-sensitive.",
            may_sign_in=may_sign_in and token is None,
            is_absent=True,
        ) from exc
    except MdirError as exc:
        raise RefusedError(sentence(exc)) from exc
    if model.commit is not None and not model.is_public and token is None:
        how = _SIGN_IN if may_sign_in else _AT_HOME
        raise RefusedError(
            f"{shortened(model.repo)} is gated: its owner lets only some accounts read it. {how}",
            runs_locally=True,
            may_sign_in=may_sign_in,
        )
    return model, using


_SIGN_IN = "Sign in with an account that has been granted access; only you will see the result."
_AT_HOME = "Run the comparison on your own machine, logged in with an account that has been granted access."


def _resolve(text: str, token: str | None, *, allow_local: bool) -> tuple[ResolvedModel, str | None]:
    for using in dict.fromkeys((token, token_of_space())):
        if using is None:
            continue
        try:
            model = resolve_model(text, token=using, allow_local=allow_local)
        except RepositoryNotFoundError:
            continue  # the token may have expired, and the next one may work
        if using == token or model.is_public:
            return model, using
    # Refuse a model that only the token of the Space can read.
    return resolve_model(text, token=False, allow_local=allow_local), None


def sentence(exc: MdirError) -> str:
    """Format an error of the package as one sentence for the page."""
    text = " ".join(str(exc).split())
    text = text if len(text) <= 700 else shortened(text, 700)
    first = text.partition(" ")[0]
    is_name = "/" in first or first.rstrip(":") == exc.subject
    return (text[:1] if is_name else text[:1].upper()) + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
