"""Measure the cost of one model, one pair and one index query: bytes, requests, processor seconds; and extrapolate.

python -m benchmarks.unit_costs [--width 2048] [--tokens 64000] [--bases 5000] [--uploads 1000]

All data is read over the loopback Hub with empty caches. Processor seconds are for one thread, so that other load on
the machine has little effect. The script then adds up the costs of comparing every upload with every base.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from tests.loopback.hub import FullHub
from tests.specimens import gaussian, write_model

T = TypeVar("T")
DOLLARS_AN_HOUR, CORES = 0.03, 8
"""Cores and price of Hugging Face's cpu-upgrade, from the price list of November 2026."""


@dataclass(frozen=True)
class Cost:
    """Cost of an operation.

    Attributes:
        n_bytes: Bytes sent by the Hub and its CDN.
        n_requests: Number of requests to both.
        cpu_s: Processor seconds of this process, including the loopback servers.
    """

    n_bytes: int
    n_requests: int
    cpu_s: float

    def __str__(self) -> str:
        return f"{self.n_bytes / 1e6:8.2f} MB {self.n_requests:5d} requests {self.cpu_s:8.3f} s"


def measured(hub: FullHub, work: Callable[[], T]) -> tuple[Cost, T]:
    """Run an operation and return its cost."""
    hub.requests.clear()
    started = time.process_time()
    result = work()
    spent = time.process_time() - started
    return Cost(sum(request.bytes_sent for request in hub.requests), len(hub.requests), spent), result


def main() -> None:
    """Measure the costs, add them up and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=64_000, help="rows of the embedding")
    parser.add_argument("--bases", type=int, default=5000, help="base models in the index")
    parser.add_argument("--uploads", type=int, default=1000, help="models uploaded in a day")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, FullHub() as hub:
        place = Path(folder)
        os.environ.update(HF_ENDPOINT=hub.endpoint, HF_HOME=str(place / "home"), MDIR_HF_CACHE=str(place / "ranges"))
        base = gaussian(options.tokens, options.width, 0)
        made = {
            "some/base": base,
            "some/tuned": base + 0.2 * gaussian(options.tokens, options.width, 1),
            "some/stranger": gaussian(options.tokens, options.width, 2),
        }
        for name, values in made.items():
            hub.add_repository(name, write_model(place / name, values))
        del base, made
        costs = measure(hub, place)
    print(f"width {options.width}, {options.tokens} tokens, BF16; one thread")
    for what, cost in costs.items():
        print(f"  {what:<42}{cost}")
    add_up(costs, options.bases, options.uploads)


def measure(hub: FullHub, place: Path) -> dict[str, Cost]:
    """Run each kind of work once."""
    # Imported here, because the Hub client reads its environment on first import.
    from mdir_hf.comparison.api import HomologyChecker
    from mdir_hf.lineage.fingerprints.opening import open_model
    from mdir_hf.lineage.index.base_index import BaseIndex
    from mdir_hf.lineage.index.building import choose_index_tokens
    from mdir_hf.lineage.index.identify import identify
    from mdir_hf.lineage.survey.sample import choose_tokens
    from mdir_hf.lineage.survey.work import compare_by_number, take
    from mdir_hf.model.hub import IoLedger
    from mdir_hf.model.open import NamedModel, Reading

    names = ("some/base", "some/tuned", "some/stranger")
    costs: dict[str, Cost] = {}
    costs["a model: listing, header, tokenizer"], opened = measured(
        hub, lambda: [(model := open_model(names[0], Reading(), IoLedger())), model.vocabulary][1]
    )
    assert opened is not None
    tokens = choose_tokens([opened], 2048)
    fingerprints = {}
    for name in names:  # the tokenizer of the first one is cached by now
        costs["a model: 2048 rows for a survey"], taken = measured(hub, lambda name=name: take(name, tokens, Reading()))
        fingerprints[name] = taken.fingerprint
    costs["a pair of a survey"], _ = measured(
        hub, lambda: compare_by_number(fingerprints, [(names[0], names[1])], 1e-10, 0)
    )
    index = BaseIndex(choose_index_tokens([opened]))
    costs["a base model into the index"], entry = measured(
        hub, lambda: index.add(open_model(names[0], Reading(), IoLedger()))
    )
    for at in range(99):
        index.bases.append(
            type(entry)(
                type(entry.model)(f"x/{at}", None, "0" * 40, "llama", entry.rows.shape[1], 2, entry.model.vocabulary),
                entry.tokens,
                gaussian(*entry.rows.shape, 10 + at).bfloat16(),
                entry.bytes_of_weights,
            )
        )
    fresh = place / "fresh"
    costs["a query: reads, and 100 bases"], identification = measured(
        hub, lambda: identify(NamedModel(names[2]), index, confirm=False, reading=Reading(cache_dir=fresh))
    )
    assert not identification.found
    query = take(names[2], index.tokens, Reading()).fingerprint
    assert query is not None
    costs["  search only, 100 bases"], _ = measured(hub, lambda: index.search(query))

    def compare() -> str:
        checker = HomologyChecker.from_pretrained(names[0], cache_dir=place / "other", force_download=True)
        return checker.compare(names[1], progress=False).verdict.value

    costs["a confirmation: a full comparison"], verdict = measured(hub, compare)
    assert verdict == "homologous"
    return costs


def add_up(costs: dict[str, Cost], n_bases: int, n_uploads: int) -> None:
    """Print the cost of comparing every upload of a day with every base."""
    question, search = costs["a query: reads, and 100 bases"], costs["  search only, 100 bases"]
    build, confirm = costs["a base model into the index"], costs["a confirmation: a full comparison"]
    opening = costs["a model: listing, header, tokenizer"]
    once_s = n_bases * (build.cpu_s + opening.cpu_s)
    once_bytes = n_bases * (build.n_bytes + opening.n_bytes)
    each_s = question.cpu_s - search.cpu_s + search.cpu_s * n_bases / 100 + confirm.cpu_s
    n_bytes = n_uploads * (question.n_bytes + confirm.n_bytes)
    n_requests = n_uploads * (question.n_requests + confirm.n_requests)
    hours = n_uploads * each_s / 3600
    print(f"{n_bases} bases: the index takes {once_bytes / 1e9:.0f} GB and {once_s / 3600:.1f} h of one core")
    print(f"{n_uploads} uploads per day compared with all of them, with one confirmation each:")
    print(f"  {n_bytes / 1e9:.1f} GB, {n_requests} requests, {hours:.1f} h of one core ({each_s:.0f} s per upload)")
    print(f"  {hours / CORES * DOLLARS_AN_HOUR:.3f} dollars per day on {CORES} cores at {DOLLARS_AN_HOUR} per hour")


if __name__ == "__main__":
    main()
