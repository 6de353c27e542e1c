"""Imported once by the fork server, so that jobs do not wait for torch or the Hub client."""

from huggingface_hub import get_session

from mdir_space.jobs import compare, family, reconstruction, survey

__all__ = ["compare", "family", "reconstruction", "survey"]

get_session()  # imports httpx without opening a connection; each process makes its own session
