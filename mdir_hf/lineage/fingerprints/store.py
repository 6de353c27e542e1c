"""Store fingerprints, so that a resumed survey reads no model twice."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from mdir_hf.errors import CorruptCheckpointError, InputError
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint
from mdir_hf.render.folder import write_file

DEFAULT_MAX_BYTES = 8 << 30
"""Room for a thousand models of width 2048 with 2048 rows each."""


class FingerprintStore:
    """A folder for fingerprints of the sample named ``sample``, limited to ``max_bytes``."""

    def __init__(self, folder: Path, sample: str, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._folder = folder
        self._sample = sample
        self._max_bytes = max_bytes

    def get(self, name: str) -> Fingerprint | None:
        """Return the stored fingerprint of a model, or None. Deletes damaged files."""
        path = self._path(name)
        if not path.is_file():
            return None
        try:
            fingerprint = Fingerprint.load(path)
        except CorruptCheckpointError:
            path.unlink(missing_ok=True)
            return None
        os.utime(path)
        return fingerprint

    def __contains__(self, name: str) -> bool:
        return self._path(name).is_file()

    def put(self, name: str, fingerprint: Fingerprint) -> None:
        """Store a fingerprint atomically. The oldest are deleted if there are too many.

        Raises:
            InputError: If the fingerprint cannot be written.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            written = write_file(self._path(name), fingerprint.to_bytes())
        except OSError as exc:
            raise InputError(f"cannot keep a fingerprint: {exc.strerror}", subject=str(self._folder)) from exc
        self._trim(keep=written)

    def _trim(self, keep: Path) -> None:
        known = sorted((path.stat().st_mtime_ns, path) for path in self._folder.glob("*.safetensors"))
        n_bytes = sum(path.stat().st_size for _, path in known)
        for _, path in known:
            if n_bytes <= self._max_bytes:
                return
            if path != keep:
                n_bytes -= path.stat().st_size
                with contextlib.suppress(OSError):  # another process may have deleted it
                    path.unlink()

    def _path(self, name: str) -> Path:
        return self._folder / (hashlib.sha256(f"{self._sample}\0{name}".encode()).hexdigest()[:32] + ".safetensors")
