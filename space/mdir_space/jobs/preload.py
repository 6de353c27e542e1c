"""Modules that the fork server imports once, so that jobs need not wait for torch, the Hub client or matplotlib."""

from importlib.util import find_spec

from huggingface_hub import get_session

from mdir_space.jobs import compare, family, reconstruction, survey

__all__ = ["compare", "family", "reconstruction", "survey"]

get_session()  # imports httpx without opening a connection; each process makes its own session

if find_spec("matplotlib") is not None:  # an extra; surveys draw while they run
    import matplotlib.backends.backend_svg
    import matplotlib.figure
    import matplotlib.style  # noqa: F401
