"""Reading models on a dask cluster: eight tasks in flight against as many as the cluster has workers, as a ratio.

    python -m benchmarks.cluster_speed [--workers 24] [--models 72] [--latency 0.5]

Workers are processes of this machine, and each request to the Hub on this machine is answered after a wait. So this
measures what a survey waits for, which is where more workers help even on two cores: the time from the first model to
the last, by the clock. Comparisons of pairs, which need processors, are not measured.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from distributed import LocalCluster

from mdir_hf.demo import loopback_server
from mdir_hf.demo.loopback import LoopbackHub
from tests.specimens import gaussian, tokens, write_model

ROWS, WIDTH = 2000, 64


class Distant(loopback_server.Handler):
    """A Hub that is some way off."""

    latency_s = 0.0

    def do_HEAD(self) -> None:
        """Wait, and answer with headers alone."""
        time.sleep(self.latency_s)
        super().do_HEAD()

    def do_GET(self) -> None:
        """Wait, and answer with content."""
        time.sleep(self.latency_s)
        super().do_GET()


def seconds_to_read(scheduler: str, names: Sequence[str], *, n_workers: int | None) -> float:
    """Read the rows of models on a cluster.

    Args:
        scheduler: Its address.
        names: Models that nothing has been read of yet.
        n_workers: Workers that it is taken to have; None: it is asked.
    """
    # Only now: the Hub client reads its environment when it is first imported.
    from mdir_hf.survey.engines import Engine, open_engine
    from mdir_hf.survey.work import take

    sample = tuple(word.encode() for word in tokens(ROWS)[::4])
    taken, failures = [], []
    with open_engine(scheduler=scheduler) as asked:
        engine = asked if n_workers is None else Engine(asked.executor, lambda: n_workers)
        started = time.perf_counter()
        engine.run(
            take, ((name, (name, sample, {})) for name in names), taken.append, lambda name, why: failures.append(why)
        )
        seconds = time.perf_counter() - started
    failures += [one.error for one in taken if one.error]
    assert not failures, failures[0]
    return seconds


def main() -> None:
    """Serve, read twice, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=24, help="workers of the cluster (default 24)")
    parser.add_argument("--models", type=int, default=72, help="models read each time (default 72)")
    parser.add_argument("--latency", type=float, default=0.5, help="seconds before each answer (default 0.5)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    Distant.latency_s = options.latency
    loopback_server.Handler = Distant
    with tempfile.TemporaryDirectory() as folder, LoopbackHub() as hub:
        os.environ.update(HF_ENDPOINT=hub.endpoint, HF_HOME=str(Path(folder) / "hf-home"))
        seconds: dict[str, float] = {}
        n_requests: dict[str, int] = {}
        with LocalCluster(
            n_workers=options.workers, threads_per_worker=1, memory_limit=0, dashboard_address=":0"
        ) as cluster:
            # The first run is not shown: workers import the package in it.
            for label, n_workers, n_models in (
                ("warming", None, 2 * options.workers),
                ("eight", 4, options.models),
                ("asked", None, options.models),
            ):
                # Names and weights of their own: what one run has read is in no cache of the next.
                names = [f"{label}/model-{at}" for at in range(n_models)]
                for at, name in enumerate(names):
                    rows = gaussian(ROWS, WIDTH, 1000 * len(seconds) + at)
                    hub.add_repository(name, write_model(Path(folder) / name.replace("/", "-"), rows))
                hub.requests.clear()
                seconds[label] = seconds_to_read(cluster.scheduler_address, names, n_workers=n_workers)
                n_requests[label] = len(hub.requests)
    print(f"{options.models} models, {options.workers} workers, {options.latency:g} s before each answer of the Hub")
    print(f"  8 tasks in flight: {seconds['eight']:.1f} s, {n_requests['eight']} requests; ", end="")
    print(f"the cluster is asked: {seconds['asked']:.1f} s, {n_requests['asked']} requests")
    print(f"  ratio: {seconds['eight'] / seconds['asked']:.1f}x sooner by the clock")


if __name__ == "__main__":
    main()
