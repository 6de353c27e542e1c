"""The fork server imports this module once, so that no job waits for torch or for the Hub client."""

from huggingface_hub import get_session

from mdir_space.jobs import compare, family, survey

__all__ = ["compare", "family", "survey"]

get_session()  # imports httpx and opens no connection; each process makes its own session
