"""What a read has freed is given back before the next."""

import platform
import subprocess
import sys

import pytest

# Blocks too small to be mapped by themselves, and a last one that keeps the heap from shrinking.
FREE_UNDER_A_LID = """
from mdir_hf.comparison.reading import return_freed_memory

def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

blocks = [b"x" * 100_000 for _ in range(1000)]
lid = b"y" * 100_000
before = resident_mib()
del blocks
freed = resident_mib()
return_freed_memory()
print(before - freed, before - resident_mib())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such function")
def test_freed_memory_is_given_back():
    run = subprocess.run([sys.executable, "-c", FREE_UNDER_A_LID], capture_output=True, text=True, check=True)
    by_itself, in_all = map(float, run.stdout.split())
    assert by_itself < 20 < 80 < in_all  # of 95 MiB
