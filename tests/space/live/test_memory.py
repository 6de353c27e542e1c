"""The main process gives back what visitors took: a leak test of ten rounds."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from benchmarks.space_day import page
from benchmarks.space_visitors import ask, main_memory
from mdir_space.jobs.lease import LEASE_S
from mdir_space.routes.streams import LOOKS_EVERY_S
from tests.space.models import BASE, RELATED, STRANGER

N_VISITORS = 24
N_WARM = 3
"""Rounds until stored results, figures and the heaps of all threads are there."""
N_ROUNDS = 10
MAX_GROWTH = 0.05
"""Of about 430 MB. A quiet machine shows 1 % between rounds; 160 pages of a megabyte each would be 37 %."""


def test_the_main_process_returns_to_its_memory(server, live_hub):
    def visit(number):
        headers = {"x-forwarded-for": f"8.9.{number // 250}.{number % 250 + 1}"}
        with httpx.Client(base_url=server.url, timeout=300, headers=headers) as client:
            if number % 3 == 0:
                return page(client, BASE, RELATED, 1e-10)
            if number % 3 == 1:
                return page(client, BASE, STRANGER, 1e-10, stays_s=0.5)
            return ask(client, [BASE, RELATED, "auto", 1e-10])

    memory = []
    for number in range(N_WARM + N_ROUNDS):
        with ThreadPoolExecutor(8) as visitors:
            outcomes = set(visitors.map(visit, range(number * N_VISITORS, (number + 1) * N_VISITORS)))
        assert "answered" in outcomes and outcomes <= {"answered", "closed"}
        time.sleep(LEASE_S + LOOKS_EVERY_S)
        httpx.get(server.url)  # the server looks at its leases when requests arrive
        memory.append(main_memory(server.process.pid))
    assert memory[-1] < (1.0 + MAX_GROWTH) * memory[N_WARM - 1], memory
