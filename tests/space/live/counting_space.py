"""Run ``mdir-hf space`` with an address that tells how many objects of visits are left."""

import gc
import sys
from collections import Counter
from pathlib import Path

from gradio.queueing import Queue
from starlette.responses import JSONResponse
from starlette.routing import Route

from mdir_hf.cli import main
from mdir_space.page import page

OF_VISITS = (
    "mdir_space.",
    "gradio.queueing",
    "gradio.state_holder",
    "mcp.",
    "uvicorn.",
    "_asyncio",
    "multiprocessing.",
)
"""Modules whose objects belong to a visitor, a session, a connection or a job."""


async def counts(_):
    """Return the number of live objects of each class, of recorded events and of open files."""
    gc.collect()
    objects = gc.get_objects()
    names = (f"{type(one).__module__}.{type(one).__qualname__}" for one in objects)
    numbers = Counter(name for name in names if name.startswith(OF_VISITS))
    n_events = sum(len(one.event_analytics) for one in objects if isinstance(one, Queue))
    n_files = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return JSONResponse({**numbers, "events": n_events, "files": n_files})


if __name__ == "__main__":
    options_of = page.launch_options

    def with_counts(service, host):
        options = options_of(service, host)
        options["app_kwargs"]["routes"].append(Route("/counts", counts))
        return options

    page.launch_options = with_counts
    sys.exit(main(["space", "--port", "0", "--limited"]))
