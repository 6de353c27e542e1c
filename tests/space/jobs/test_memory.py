"""The heaps of the C library, in a process of their own."""

import ctypes
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have another allocator")

THREADS = """
import ctypes, threading
from pathlib import Path
from mdir_space.jobs import memory
{call}
held, all_hold = [], threading.Barrier(9)
def hold():
    held.append(bytearray(50_000))
    all_hold.wait()
for _ in range(8):
    threading.Thread(target=hold).start()
all_hold.wait()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(b"heaps.xml", b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
print(Path("heaps.xml").read_text().count("<heap nr="))
"""


def n_heaps(call, folder):
    if not hasattr(ctypes.CDLL(None), "malloc_info"):
        pytest.skip("the C library is not glibc")
    run = subprocess.run(
        [sys.executable, "-c", THREADS.format(call=call)],
        capture_output=True,
        text=True,
        cwd=folder,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return int(run.stdout)


def test_all_threads_share_two_heaps(tmp_path):
    assert n_heaps("memory.share_heaps()", tmp_path) <= 2 < n_heaps("", tmp_path)
