"""Real rival packages, in an environment of their own, where ``MDIR_HF_PEERS_PYTHON`` names its interpreter.

They ask for another Python (the kit for 3.12) and for packages that are none of ours:

    python3.12 -m venv peers && peers/bin/pip install cisco-ai-provenance-kit weightscope
    MDIR_HF_PEERS_PYTHON=peers/bin/python python -m benchmarks.zoo …

One process is started for each package and answers pair after pair (``rival.py``), so that its imports are paid once.
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
    """A package that is asked about pairs of folders.

    Args:
        package: Its name for ``rival.py``.
        name: Its name in tables.
        source: Name and version on the package index.
        threshold: From which score on it says related.
        python: Interpreter of the environment that it is installed in.
    """

    def __init__(self, package: str, name: str, source: str, threshold: float, python: str) -> None:
        self.name, self.source, self.threshold = name, source, threshold
        self._package, self._python = package, python
        self._process: subprocess.Popen[str] | None = None

    def warm_up(self, folder: Path) -> None:
        """Import what the package imports when it is first used; of the model nothing is kept."""
        self._ask("warm_up", [folder.resolve()])

    def read(self, folder: Path, reads: Reads) -> Path:
        """The folder, since these packages take pairs; the kit keeps the model's features in its own cache.

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
        """Ask the package.

        Raises:
            CannotSayError: If it has ended.
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
        except BrokenPipeError:  # it ended before it was asked, and the empty line below says so
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
            # Nothing of ours on its path, nothing from the network, and a cache that goes with us.
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
    """The packages of the environment that ``MDIR_HF_PEERS_PYTHON`` names; none where it is not set."""
    python = os.environ.get(VARIABLE)
    if not python:
        return ()
    return (
        InstalledPeer(
            "provenancekit", "Provenance Kit (package)", "cisco-ai-provenance-kit 1.0.0, compare", 0.75, python
        ),
        InstalledPeer("weightscope", "weightscope (package)", "weightscope 0.4.3, lineage", 0.01, python),
    )
