"""Run coroutines from tests."""

import asyncio
from concurrent.futures import ThreadPoolExecutor


def finish(coroutine):
    """Run a coroutine and return its result.

    It runs in a new thread: once a test has opened a browser, Playwright keeps an event loop in the main thread.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
