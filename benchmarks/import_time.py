"""Check that `import mdir_hf` takes under 200 ms more than bare Python.

The script starts both in turn, so that load on the machine affects both alike, and prints the ratio and the difference
of the medians.
"""

import statistics
import subprocess
import sys
import time

RUNS = 21


def start_ms(statement: str) -> float:
    """Return the wall time of a new interpreter that runs one statement."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return (time.perf_counter() - start) * 1000


def main() -> None:
    """Measure both and print the results."""
    bare_ms, with_import_ms = [], []
    for _ in range(RUNS):
        bare_ms.append(start_ms("pass"))
        with_import_ms.append(start_ms("import mdir_hf"))
    bare, with_import = statistics.median(bare_ms), statistics.median(with_import_ms)
    print(f"python -c pass              {bare:7.1f} ms (median of {RUNS})")
    print(f"python -c 'import mdir_hf'  {with_import:7.1f} ms")
    print(f"ratio {with_import / bare:.2f}, difference {with_import - bare:.1f} ms (goal: under 200 ms)")


if __name__ == "__main__":
    main()
