"""Measure bytes and memory of a comparison at the size of Llama-3.1-8B, relative to both checkpoints.

Run from the repository: ``.venv/bin/python -m benchmarks.llama_8b_bytes``. It needs 3 GB of disk
temporarily. With ``--stranger`` it needs 20 GB and a quarter of an hour on two cores, because no test settles that pair
and all of its layers are mapped. ``--neurons`` adds copies with new embeddings, with and without a rotated residual
stream, and needs 8 GB.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

from tests.large import llama_8b
from tests.large.measure import run_compare
from tests.loopback.hub import FullHub


def main() -> None:
    """Compare each candidate and print one line for it."""
    # An interrupted run also deletes its gigabytes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    candidates = {
        "fine-tune": (llama_8b.fine_tuned_rows, None, None),
        "resaved": (llama_8b.resaved_rows, None, None),
    }
    if "--stranger" in sys.argv[1:]:
        candidates["stranger"] = (llama_8b.stranger_rows, 1, None)
    with_neurons = "--neurons" in sys.argv[1:]
    if with_neurons:
        candidates["new embeddings"] = (llama_8b.stranger_rows, None, llama_8b.moved_neurons)
        candidates["rotated, new embeddings"] = (llama_8b.stranger_rows, None, llama_8b.turned_neurons)
    base = (
        llama_8b.base_rows,
        0 if "stranger" in candidates else None,
        llama_8b.base_neurons if with_neurons else None,
    )
    tokenizer = llama_8b.tokenizer_of_real_size()
    with tempfile.TemporaryDirectory() as place, FullHub() as hub:
        repositories = {}
        for number, (name, (rows, seed, neurons)) in enumerate({"base": base, **candidates}.items()):
            repositories[name] = f"llama/{number}"
            folder = Path(place, str(number))
            digests = llama_8b.write_checkpoint(folder, rows, tokenizer, layers_seed=seed, neurons=neurons)
            hub.add_repository(repositories[name], folder, sha256=digests)
        for candidate in candidates:
            run = run_compare(
                repositories["base"],
                repositories[candidate],
                endpoint=hub.endpoint,
                home=Path(place, f"home-{repositories[candidate][-1]}"),
                timeout_s=7200.0,
            )
            report = run.report
            io = report["io"]
            print(
                f"{candidate}: {report['verdict']}, log10 p {report['log10_p']:.0f}, by {report['settled_by']}: "
                f"read {io['bytes_read'] / 1e6:.1f} MB of {io['bytes_of_weights'] / 1e9:.1f} GB, "
                f"{io['bytes_from_cache'] / 1e6:.1f} MB again from the cache "
                f"({100 * run.share_read:.3f} %) in {io['requests']} requests, "
                f"peak memory {run.peak_memory_bytes / 2**20:.0f} MiB, {run.cpu_s:.0f} s of processor, by the clock "
                f"{report['seconds']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
