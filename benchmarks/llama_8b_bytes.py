"""Bytes and memory of a comparison at the size of Llama-3.1-8B, against what the two checkpoints hold.

Run from the repository: ``.venv/bin/python -m benchmarks.llama_8b_bytes``. Needs 3 GB of disk for a while; 20 GB, and
a quarter of an hour of two cores, with ``--stranger``: nothing settles that pair, so that all of its layers are mapped.
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
    """Print one line for each candidate."""
    with_stranger = "--stranger" in sys.argv[1:]
    # Gigabytes are not left behind by a run that somebody ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    tokenizer = llama_8b.tokenizer_of_real_size()
    with tempfile.TemporaryDirectory() as place, FullHub() as hub:
        for name, rows in (
            ("base", llama_8b.base_rows),
            ("fine-tune", llama_8b.fine_tuned_rows),
            ("resaved", llama_8b.resaved_rows),
            *([("stranger", llama_8b.stranger_rows)] if with_stranger else []),
        ):
            seed = {"base": 0, "stranger": 1}.get(name) if with_stranger else None
            digests = llama_8b.write_checkpoint(Path(place, name), rows, tokenizer, layers_seed=seed)
            hub.add_repository(f"llama/{name}", Path(place, name), sha256=digests)
        for candidate in ("fine-tune", "resaved", *(["stranger"] if with_stranger else [])):
            run = run_compare(
                "llama/base",
                f"llama/{candidate}",
                endpoint=hub.endpoint,
                home=Path(place, f"home-{candidate}"),
                timeout_s=7200.0,
            )
            report = run.report
            io = report["io"]
            print(
                f"{candidate:10} {report['verdict']}, log10 p {report['log10_p']:.0f}, by {report['settled_by']}: "
                f"read {io['bytes_read'] / 1e6:.1f} MB of {io['bytes_of_weights'] / 1e9:.1f} GB, "
                f"{io['bytes_from_cache'] / 1e6:.1f} MB once more "
                f"({100 * run.share_read:.3f} %) in {io['requests']} requests, "
                f"peak memory {run.peak_memory_bytes / 2**20:.0f} MiB, {run.cpu_s:.0f} s of processor, by the clock "
                f"{report['seconds']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
