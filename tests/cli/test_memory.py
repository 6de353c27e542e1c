"""Memory that the threads of a command free is returned to the system."""

import platform
import subprocess
import sys

import pytest

# As many threads as read concurrently free blocks that glibc keeps; the first allocation raises its threshold.
READ_AND_FREE = """
import sys, threading
if sys.argv[1] == "ours":
    from mdir_hf.cli.main import keep_no_freed_blocks
    keep_no_freed_blocks()

def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

before = resident_mib()
def read():
    for _ in range(3):
        blocks = [b"x" * (31 << 20), b"y" * (20 << 20)]
        del blocks
bytes(31 << 20)
barrier = threading.Barrier(8)
threads = [threading.Thread(target=lambda: (read(), barrier.wait())) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(resident_mib() - before)
"""


def kept_mib(whose):
    run = subprocess.run([sys.executable, "-c", READ_AND_FREE, whose], capture_output=True, text=True, check=True)
    return float(run.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such rule")
def test_memory_freed_by_threads_is_returned():
    assert kept_mib("ours") < 32  # at most two of the largest blocks are kept
