"""Which commits a question is about, and with whose rights they are read.

What everybody may read is read with no token, through the caches, and its result is kept for everybody. Anything else
is read with the visitor's own token, without any cache, and its result goes to that visitor and nowhere else. The
token of the server (``HF_TOKEN``) is used for nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mdir_hf import MdirError, RepositoryNotFoundError, ResolvedModel, resolve_model
from mdir_space.question import Question, RefusedError, shortened


@dataclass(frozen=True)
class Access:
    """Two models pinned to commits, and how they may be read.

    Attributes:
        reference: The one model.
        candidate: The other.
        token: Token to read them with; None: none is needed.
        is_shared: Whether everybody may see the result.
    """

    reference: ResolvedModel
    candidate: ResolvedModel
    token: str | None = field(default=None, repr=False)
    is_shared: bool = False


def find_access(question: Question, token: str | None, *, allow_local: bool, may_sign_in: bool) -> Access:
    """Find what a question is about and how it may be read.

    Args:
        question: The question.
        token: The visitor's own token, if there is one.
        allow_local: Whether folders and files of this machine may be named.
        may_sign_in: Whether this page has a button to sign in.

    Raises:
        RefusedError: If a model is not there for this visitor.

    Cost: one API request for each model, two for one that is not there without a token.
    """
    models = [
        _find(text, token, allow_local=allow_local, may_sign_in=may_sign_in)
        for text in (question.reference, question.candidate)
    ]
    needs_token = any(not model.is_public and model.commit is not None for model in models)
    return Access(
        models[0],
        models[1],
        token=token if needs_token else None,
        is_shared=all(model.is_public for model in models),
    )


def _find(text: str, token: str | None, *, allow_local: bool, may_sign_in: bool) -> ResolvedModel:
    try:
        model = _resolve(text, token, allow_local=allow_local)
    except RepositoryNotFoundError as exc:
        why = "There is no such model, or it is private" if token is None else "There is no such model for your account"
        raise RefusedError(
            f"{shortened(text)} was not found on the Hub. {why}. Check the spelling: upper and lower case matter.",
            may_sign_in=may_sign_in and token is None,
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
    return model


_SIGN_IN = "Sign in with an account that has been granted access; what it reads is shown to you alone."
_AT_HOME = "Run the comparison on your own machine, logged in with an account that has been granted access."


def _resolve(text: str, token: str | None, *, allow_local: bool) -> ResolvedModel:
    try:
        return resolve_model(text, token=False, allow_local=allow_local)
    except RepositoryNotFoundError:
        if token is None:
            raise
        return resolve_model(text, token=token, allow_local=allow_local)


def sentence(exc: MdirError) -> str:
    """Return an error of the package as one sentence for the page."""
    text = " ".join(str(exc).split())
    text = text if len(text) <= 700 else shortened(text, 700)
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
