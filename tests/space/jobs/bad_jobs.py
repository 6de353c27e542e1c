"""Misbehaving jobs, run in real processes."""

import ctypes
import os
import sys
import time
from dataclasses import dataclass

from mdir_hf.comparison.progress import Progress
from mdir_space.jobs.compare import ComparisonJob


@dataclass(frozen=True)
class HoldsTheInterpreter(ComparisonJob):
    """Sleeps in C forever and holds the GIL: no other thread of its process runs, and no processor time is used."""

    def run(self, emit):
        emit(Progress("near", os.getpid()))
        while True:
            ctypes.PyDLL(None).sleep(3600)


@dataclass(frozen=True)
class TakesAllMemory(ComparisonJob):
    """Allocates all memory and keeps it."""

    def run(self, emit):
        emit(Progress("near", os.getpid()))
        kept = []
        while True:
            kept.append(bytearray(64 << 20))


@dataclass(frozen=True)
class Crashes(ComparisonJob):
    """Reads an invalid address."""

    def run(self, emit):
        emit(Progress("near", os.getpid()))
        ctypes.string_at(0)


@dataclass(frozen=True)
class IsOurFault(ComparisonJob):
    """Fails with an unexpected exception, as with a bug of ours."""

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
    """Compares neurons, emits the result, and hangs at the embeddings."""

    def run(self, emit):
        def say(event):
            emit(event)
            if isinstance(event, Progress) and event.stage == "embeddings":
                time.sleep(600)

        return super().run(say)
