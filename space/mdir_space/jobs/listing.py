"""List the models of a collection or an author on the Hub."""

from __future__ import annotations

from mdir_hf import MdirError
from mdir_hf.model.hub.model_info import models_of_author, models_of_collection
from mdir_space.jobs.access import sentence
from mdir_space.jobs.question import MAX_MODELS, RefusedError, author_in, is_collection, shortened


def listed_models(name: str, token: str | None) -> tuple[tuple[str, ...], str]:
    """List the models of a collection or an author, with one API request.

    Returns:
        At most as many models as a survey accepts, and a sentence on those left out.

    Raises:
        RefusedError: If the list does not exist, or contains fewer than two models.
    """
    try:
        if is_collection(name):
            address = name if "://" in name or "/collections/" not in name else f"https://{name}"
            listing = models_of_collection(address, token=token or False)
            of = f"The collection {shortened(name)}"
        else:
            listing = models_of_author(author_in(name), limit=MAX_MODELS, token=token or False)
            of = shortened(author_in(name))
    except MdirError as exc:
        raise RefusedError(sentence(exc)) from exc
    names = listing.names[:MAX_MODELS]
    if len(names) < 2:
        raise RefusedError(f"{of} has one model that can be surveyed, {names[0]}. Name that model to find its family.")
    n_more = len(listing.names) - len(names)
    is_cut = listing.is_cut or n_more > 0
    return names, f"{of} has more models; this survey takes the first {len(names)} in the Hub's list." if is_cut else ""
