"""Running coroutines from tests."""

import asyncio
from concurrent.futures import ThreadPoolExecutor


def finish(coroutine):
    """Run a coroutine to its end and return its result.

    In a thread of its own: once a test has opened a browser, Playwright keeps an event loop in the main one.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
