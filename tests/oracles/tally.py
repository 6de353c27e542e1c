"""Count cases and disagreements of each format, for the table at the end of ``make oracles``."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field

import torch

IS_FULL = os.environ.get("MDIR_HF_ORACLES") == "full"
"""Whether all cases run, or only as many as fit into ``make test-slow``."""


def cases(part: int, full: int) -> int:
    """Return the number of cases to run."""
    return full if IS_FULL else part


@dataclass
class Tally:
    """Cases and disagreements of one format.

    Attributes:
        checked: Cases by format.
        disagreements: Descriptions of the cases that disagree.
    """

    checked: Counter[str] = field(default_factory=Counter)
    disagreements: dict[str, list[str]] = field(default_factory=dict)

    def agree(self, library: str, case: str, does_agree: bool) -> None:
        """Count a case."""
        self.checked[library] += 1
        if not does_agree:
            self.disagreements.setdefault(library, []).append(case)

    def equal(self, library: str, case: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        """Count a case, which agrees if both tensors have the same shape and bits."""
        self.agree(library, case, ours.shape == theirs.shape and torch.equal(ours, theirs.to(ours.dtype)))

    def lines(self) -> list[str]:
        """Return one line for each library."""
        return [
            f"{library}: {n:,} cases, {len(self.disagreements.get(library, ()))} disagreements"
            for library, n in sorted(self.checked.items())
        ]


TALLY = Tally()
"""The tally of this process."""
