"""Real rival packages, in a separate environment whose interpreter is named by ``MDIR_HF_PEERS_PYTHON``.

They need another Python version (3.12 for the kit) and packages that this project does not use:

python3.12 -m venv peers && peers/bin/pip install cisco-ai-provenance-kit weightscope
MDIR_HF_PEERS_PYTHON=peers/bin/python python -m benchmarks zoo-peers

One process per package answers pair after pair (``rival.py``), so that imports run only once.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers.interface import CannotSayError, Peer, PeerScore
from benchmarks.peers.reads import Reads

VARIABLE = "MDIR_HF_PEERS_PYTHON"


class InstalledPeer(Peer):
    """A package that scores pairs of folders.

    Args:
        package: Its name for ``rival.py``.
        name: Its name in tables.
        source: Name and version on the package index.
        threshold: Smallest score of a pair that it calls related.
        python: Interpreter of the environment with the package.
    """

    def __init__(self, package: str, name: str, source: str, threshold: float, python: str) -> None:
        self.name, self.source, self.threshold = name, source, threshold
        self._package, self._python = package, python
        self._process: subprocess.Popen[str] | None = None

    def warm_up(self, folder: Path) -> None:
        """Import everything that the package imports on first use; discard the result for the model."""
        self._ask("warm_up", [folder.resolve()])

    def read(self, folder: Path, reads: Reads) -> Path:
        """Return the folder, because these packages take pairs; the kit caches the model's features itself.

        Raises:
            CannotSayError: If the package fails on it.
        """
        folder = folder.resolve()
        answer = self._ask("prepare", [folder])
        _count(answer, reads)
        if answer["reason"] is not None:
            raise CannotSayError(answer["reason"])
        return folder

    def compare(self, a: Path, b: Path) -> PeerScore:
        """Send a question to the package.

        Raises:
            CannotSayError: If it has terminated.
        """
        answer = self._ask("compare", [a, b])
        reads = Reads()
        _count(answer, reads)
        return PeerScore(answer["score"], reason=answer["reason"], n_bytes_of_weights=reads.n_bytes_of_weights)

    def _ask(self, ask: str, folders: list[Path]) -> dict[str, Any]:
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps({"ask": ask, "folders": [str(folder) for folder in folders]}) + "\n")
            process.stdin.flush()
        except BrokenPipeError:  # it terminated before the question; the empty line below leads to the error
            pass
        line = process.stdout.readline()
        if not line:
            self._process = None
            raise CannotSayError(f"{self._package} ended with status {process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        self.elsewhere_cpu_s += answer["cpu_s"]
        return answer

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            # Without our packages on its path, without network, and with a temporary cache.
            cache = tempfile.TemporaryDirectory(prefix="peer-")
            atexit.register(cache.cleanup)
            environment = {
                **{key: value for key, value in os.environ.items() if not key.startswith("PYTHON")},
                "HF_HUB_OFFLINE": "1",
                "HF_HOME": cache.name,
                "OMP_NUM_THREADS": "1",
            }
            process = subprocess.Popen(
                [self._python, str(Path(__file__).with_name("rival.py")), self._package, cache.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
            atexit.register(process.kill)
            self._process = process
        return self._process


def _count(answer: dict[str, Any], reads: Reads) -> None:
    for file, start, stop in answer["read"]:
        reads.add(Path(file), start, stop)


def installed_peers() -> tuple[Peer, ...]:
    """Return the packages of the environment named by ``MDIR_HF_PEERS_PYTHON``, or none if it is not set."""
    python = os.environ.get(VARIABLE)
    if not python:
        return ()
    return (
        InstalledPeer(
            "provenancekit", "Provenance Kit (package)", "cisco-ai-provenance-kit 1.0.0, compare", 0.75, python
        ),
        InstalledPeer("weightscope", "weightscope (package)", "weightscope 0.4.3, lineage", 0.01, python),
    )
