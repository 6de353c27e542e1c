"""``python -m tests.fuzz SECONDS [TARGET…]``: fuzz all targets for the same time and keep the inputs that fail."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
import traceback
import warnings
from pathlib import Path

from huggingface_hub.utils.logging import set_verbosity_error
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.counted import store_counts
from tests.fuzz.property import FINDINGS, Target, check
from tests.fuzz.targets import TARGETS

EXAMPLES_AT_A_TIME = 400


def one_round(name: str, target: Target) -> bytes | None:
    """Read some hundred new files; return the smallest that breaks the property, or None."""
    broken: list[bytes] = []

    @settings(max_examples=EXAMPLES_AT_A_TIME, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(choice=st.data())
    def holds(choice: st.DataObject) -> None:
        data = choice.draw(target.files)
        try:
            check(target.read, data)
        except BaseException:
            broken.append(data)
            raise

    try:
        holds()
    except Exception:
        sys.stderr.write(f"{name}:\n{traceback.format_exc(limit=-6)}\n")
        return min(broken, key=len)
    return None


def main() -> int:
    """Run until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float, help="processor time of this process")
    parser.add_argument("targets", nargs="*", default=list(TARGETS))
    parser.add_argument("--results", type=Path, metavar="FILE", help="add the counts to this file")
    asked = parser.parse_args()
    warnings.simplefilter("error")
    set_verbosity_error()  # else the client logs each of some 100,000 retries
    spent_s = dict.fromkeys(asked.targets, 0.0)
    n_rounds = n_found = 0
    while time.process_time() < asked.seconds:
        name = min(spent_s, key=spent_s.__getitem__)
        began = time.process_time()
        broken = one_round(name, TARGETS[name])
        spent_s[name] += time.process_time() - began
        n_rounds += 1
        if broken is not None:
            n_found += 1
            path = FINDINGS / name / hashlib.sha256(broken).hexdigest()[:12]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(broken)
            sys.stderr.write(f"kept as {path}\n")
    n_files = n_rounds * EXAMPLES_AT_A_TIME
    sys.stdout.write(
        f"{n_files:,} files for {len(spent_s)} readers in {time.process_time():,.0f} s of processor time, "
        f"{n_found} broke the property\n"
    )
    if asked.results is not None:
        row = {
            "what": "changed files and responses read",
            "tried": n_files,
            "wrong": n_found,
            "command": f"python -m tests.fuzz {asked.seconds:.0f}",
        }
        store_counts(asked.results, [row])
    return 1 if n_found else 0


if __name__ == "__main__":
    sys.exit(main())
