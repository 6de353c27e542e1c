"""Answers pairs of folders with the score of a rival package; runs in the environment of that package, not in ours.

Reads one JSON list of two folders a line and writes one JSON object a line. Start: rival.py PACKAGE CACHE_FOLDER.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path


def provenance_kit(cache: Path) -> Callable[[str, str], dict[str, object]]:
    """The pipeline score of ``provenancekit compare``."""
    from provenancekit.core.scanner import ModelProvenanceScanner
    from provenancekit.services.cache import CacheService

    scanner = ModelProvenanceScanner(cache=CacheService(cache_dir=cache))
    return lambda a, b: {"score": float(scanner.compare(a, b).scores.pipeline_score)}


def weightscope(cache: Path) -> Callable[[str, str], dict[str, object]]:
    """The share of unchanged weights of ``weightscope lineage``."""
    from weightscope.lineage import find_lineage

    def ask(a: str, b: str) -> dict[str, object]:
        found = find_lineage(b, [a], cache_dir=str(cache))[0]
        if found.verdict in ("failed", "architecture_mismatch"):
            return {"score": None, "reason": found.error or found.verdict}
        return {"score": float(found.sparsity)}

    return ask


def main() -> None:
    """Answer until the input ends."""
    # Only answers may stand on standard output, whatever the package prints.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    ask = {"provenancekit": provenance_kit, "weightscope": weightscope}[sys.argv[1]](Path(sys.argv[2]))
    for line in sys.stdin:
        a, b = json.loads(line)
        started = time.process_time()
        with redirect_stdout(sys.stderr):
            try:
                answer = ask(a, b)
            except Exception as exc:  # whatever it stumbles over is its answer to this pair
                answer = {"score": None, "reason": f"{type(exc).__name__}: {' '.join(str(exc).split())[:200]}"}
        answers.write(json.dumps({**answer, "cpu_s": time.process_time() - started}) + "\n")


if __name__ == "__main__":
    main()
