"""Hand-made reports, honest and hostile."""

from __future__ import annotations

from typing import Any

from mdir_hf import HomologyReport, Verdict
from mdir_hf.report import InputOutput, Level, ModelSummary, SettledBy

BASE_COMMIT, TUNED_COMMIT = "a1" * 20, "b2" * 20


def model(repo: Any = "owner/base", commit: Any = BASE_COMMIT, revision: Any = None) -> ModelSummary:
    return ModelSummary(repo, revision, commit, "llama", 64, 2, 1200)


def a_report(**fields: Any) -> HomologyReport:
    """Return a report of owner/base and me/tuned, homologous at log10 p = -30.2, with the given fields replaced."""
    standard: dict[str, Any] = {
        "verdict": Verdict.HOMOLOGOUS,
        "reason": None,
        "log10_p": -30.2,
        "alpha": 1e-10,
        "tests": 1,
        "level": Level.AUTO,
        "settled_by": SettledBy.NEAR,
        "reference": model(),
        "candidate": model("me/tuned", TUNED_COMMIT),
        "embedding": None,
        "unembedding": None,
        "layers": None,
        "modules": None,
        "caveats": (),
        "io": InputOutput(1, 0, 2, 3, ()),
        "seconds": {"near": 0.1},
        "seed": 0,
        "version": "0.1.0",
    }
    return HomologyReport(**{**standard, **fields})


HOSTILE_TEXTS = [
    "<script>alert(1)</script>",
    'x" onload="alert(1)',
    "' onload='alert(1)",
    "]]></desc><script>alert(1)</script>",
    "--><script>alert(1)</script><!--",
    "](javascript:alert(1)) [x",
    "a\nbase_model: evil/model\n---\n# taken over",
    "| a | b |\n|---|---|",
    "<!-- mdir-hf:lineage:end -->",
    "&amp;&#x3c;script&#x3e;",
    "\x00\x08\x1b[31mred",
    "\ud800 lone surrogate",
    "\u202egnp.exe",
    "../../etc/passwd",
    "https://evil.example/a/b",
    "owner/name extra",
    "x" * 10_000,
    "",
    None,
    5,
    ["owner/name"],
    {"a": 1},
]
"""Invalid names of repositories."""
