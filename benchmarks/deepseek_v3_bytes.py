"""Measure comparisons at the size of DeepSeek-V3 (689 GB in 163 shards) over a loopback Hub.

Run from the repository: ``.venv/bin/python -m benchmarks.deepseek_v3_bytes``. It needs 6 GB of disk temporarily. The
full test (``--full``) takes some minutes: one SVD of 7168 x 7168 for a relative, more for a stranger. It prints
requests, bytes and memory.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

from tests.large import deepseek_v3, llama_8b
from tests.large.measure import run_compare
from tests.loopback.hub import FullHub


def main() -> None:
    """Run each comparison and print one line for it."""
    comparisons = [("fine-tune", "auto"), ("stranger", "auto")]
    if "--full" in sys.argv[1:]:
        comparisons += [("fine-tune", "layers"), ("stranger", "layers")]
    # An interrupted run also deletes its gigabytes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    tokenizer = llama_8b.tokenizer_of_real_size()
    with tempfile.TemporaryDirectory() as place, FullHub() as hub:
        for name, rows in (
            ("base", deepseek_v3.base_rows),
            ("fine-tune", deepseek_v3.fine_tuned_rows),
            ("stranger", deepseek_v3.stranger_rows),
        ):
            digests = deepseek_v3.write_checkpoint(Path(place, name), rows, tokenizer)
            hub.add_repository(f"deepseek/{name}", Path(place, name), sha256=digests)
        for candidate, level in comparisons:
            run = run_compare(
                "deepseek/base",
                f"deepseek/{candidate}",
                "--level",
                level,
                endpoint=hub.endpoint,
                home=Path(place, f"home-{candidate}-{level}"),
                timeout_s=7200.0,
            )
            report = run.report
            io = report["io"]
            print(
                f"{candidate:10} {level:9} {report['verdict']}, log10 p {report['log10_p']:.0f}, by "
                f"{report['settled_by']}: read {io['bytes_read'] / 1e6:.1f} MB of "
                f"{io['bytes_of_weights'] / 1e9:.0f} GB ({100 * run.share_read:.4f} %) in {io['requests']} requests "
                f"for both models, {len(io['files'])} files touched, "
                f"peak memory {run.peak_memory_bytes / 2**20:.0f} MiB, "
                f"seconds {report['seconds']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
