"""Jobs that do what no job should, done in real processes."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from dataclasses import dataclass

from mdir_hf.comparison.progress import Progress
from mdir_space.jobs.compare import ComparisonJob


@dataclass(frozen=True)
class HoldsTheInterpreter(ComparisonJob):
    """Calls C that never ends and keeps the lock: no other thread of its process runs, and no processor is used."""

    def run(self, emit):
        emit(Progress("screen", os.getpid()))
        while True:
            ctypes.PyDLL(None).sleep(3600)


@dataclass(frozen=True)
class TakesAllMemory(ComparisonJob):
    """Takes memory until there is no more, and keeps it."""

    def run(self, emit):
        emit(Progress("screen", os.getpid()))
        kept = []
        while True:
            kept.append(bytearray(64 << 20))


@dataclass(frozen=True)
class Crashes(ComparisonJob):
    """Reads where nothing is."""

    def run(self, emit):
        emit(Progress("screen", os.getpid()))
        ctypes.string_at(0)


@dataclass(frozen=True)
class IsOurFault(ComparisonJob):
    """Fails as our own mistakes do."""

    def run(self, emit):
        raise ZeroDivisionError("ours")


@dataclass(frozen=True)
class LacksAnImport(ComparisonJob):
    """Fails unless the fork server has imported the module that draws."""

    def run(self, emit):
        assert "matplotlib.backends.backend_svg" in sys.modules
        return super().run(emit)


@dataclass(frozen=True)
class FindsAndThenHangs(ComparisonJob):
    """Compares the embeddings, says what they say, and never comes back from the layers."""

    def run(self, emit):
        def say(event):
            emit(event)
            if isinstance(event, Progress) and event.stage == "layers":
                time.sleep(600)

        return super().run(say)
