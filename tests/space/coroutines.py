"""Run coroutines from tests."""

import asyncio
from concurrent.futures import ThreadPoolExecutor


def finish(coroutine):
    """Run a coroutine and return its result.

    It runs in a new thread, because Playwright keeps an event loop in the main thread after a test has opened a browser.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
