"""Ask a rival package about folders; runs in the environment of that package.

It reads and writes one JSON object per line. Start it as rival.py PACKAGE CACHE_FOLDER. A question is ``{"ask":
"compare", "folders": [a, b]}``, or ``prepare`` or ``warm_up`` with one folder.

Reads are counted in this process, which does nothing else: the tensors taken from safetensors files, by their position
in the file, with each header, and every other file of the folders that Python opens, as a whole. Kernel counters are
not usable: files are memory-mapped, so reads are invisible, and page-ins exceed the requested data.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import safetensors

Spans = set[tuple[str, int, int]]

real_path = lru_cache(maxsize=None)(os.path.realpath)  # weightscope opens a file again for every tensor


class Package(NamedTuple):
    """Supported questions: score two folders, cache one folder, and run the imports with one folder."""

    compare: Callable[[str, str], dict[str, object]]
    prepare: Callable[[str], object]
    warm_up: Callable[[str], object]


def provenance_kit(cache: Path) -> Package:
    """The pipeline score of ``provenancekit compare``, which caches the features of every model."""
    from provenancekit.core.scanner import ModelProvenanceScanner
    from provenancekit.services.cache import CacheService, NullCache

    scanner = ModelProvenanceScanner(cache=CacheService(cache_dir=cache))
    forgetful = ModelProvenanceScanner(cache=NullCache())
    return Package(
        compare=lambda a, b: {"score": float(scanner.compare(a, b).scores.pipeline_score)},
        prepare=lambda folder: scanner.compare(folder, folder),
        warm_up=lambda folder: forgetful.compare(folder, folder),
    )


def weightscope(cache: Path) -> Package:
    """The share of unchanged weights from ``weightscope lineage``, which reads both models for every pair."""
    from weightscope.lineage import find_lineage

    def compare(a: str, b: str) -> dict[str, object]:
        lineage = find_lineage(b, [a], cache_dir=str(cache))[0]
        if lineage.verdict in ("failed", "architecture_mismatch"):
            return {"score": None, "reason": lineage.error or lineage.verdict}
        return {"score": float(lineage.sparsity)}

    return Package(compare, prepare=lambda folder: None, warm_up=lambda folder: compare(folder, folder))


PACKAGES = {"provenancekit": provenance_kit, "weightscope": weightscope}


def places_of(path: str) -> dict[str, list[int]]:
    """Return start and stop of each tensor of a safetensors file, and of its header under an empty name."""
    with Path(path).open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(start - 8))
    tensors = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
    return {"": [0, start], **{name: [start + at for at in offsets] for name, offsets in tensors.items()}}


def count_tensors(spans: Spans) -> None:
    """Make ``safetensors.safe_open`` report the bytes requested; must run before it is imported elsewhere."""
    safe_open = safetensors.safe_open
    headers: dict[str, dict[str, list[int]]] = {}

    class CountedFile:
        def __init__(self, filename: Any, *args: Any, **options: Any) -> None:
            self._path, self._file = real_path(filename), safe_open(filename, *args, **options)
            if self._path not in headers:
                headers[self._path] = places_of(self._path)
            self._places = headers[self._path]
            self._count("")

        def __enter__(self) -> "CountedFile":
            self._file.__enter__()
            return self

        def __exit__(self, *exc: Any) -> Any:
            return self._file.__exit__(*exc)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def get_tensor(self, name: str) -> Any:
            self._count(name)
            return self._file.get_tensor(name)

        def get_tensors(self, *args: Any, **options: Any) -> Any:
            tensors = self._file.get_tensors(*args, **options)
            self._count(*tensors)
            return tensors

        def get_slice(self, name: str) -> Any:
            # An upper bound for slices; on the zoo all tensors are taken whole.
            self._count(name)
            return self._file.get_slice(name)

        def _count(self, *names: str) -> None:
            spans.update((self._path, *self._places[name]) for name in names)

    safetensors.safe_open = CountedFile


def main() -> None:
    """Answer until the input ends."""
    # Only answers may be written to standard output, even if the package prints.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    spans: Spans = set()
    folders: list[str] = []

    def opened(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], (str, os.PathLike)) and not str(args[0]).endswith(".safetensors"):
            path = real_path(args[0])
            if path.startswith(tuple(folder + os.sep for folder in folders)):
                spans.add((path, 0, Path(path).stat().st_size))

    count_tensors(spans)
    package = PACKAGES[sys.argv[1]](Path(sys.argv[2]))
    sys.addaudithook(opened)
    for line in sys.stdin:
        question = json.loads(line)
        folders[:] = question["folders"]
        spans.clear()
        started = time.process_time()
        with redirect_stdout(sys.stderr):
            try:
                answer = getattr(package, question["ask"])(*folders)
            except Exception as exc:  # any failure counts as the answer for this pair
                answer = {"score": None, "reason": f"{type(exc).__name__}: {' '.join(str(exc).split())[:200]}"}
        cpu_s = time.process_time() - started
        fields = answer if isinstance(answer, dict) else {}
        answers.write(json.dumps({"reason": None, **fields, "cpu_s": cpu_s, "read": sorted(spans)}) + "\n")


if __name__ == "__main__":
    main()
