"""Do two language models share weight ancestry? An answer from the weights alone, with a p-value."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from mdir_hf._version import __version__

if TYPE_CHECKING:
    from mdir_hf.cards.badge import Badge, make_badge
    from mdir_hf.cards.declared import DeclaredLineage, declared_lineage
    from mdir_hf.checker import HomologyChecker
    from mdir_hf.comparison.plan import ReadPlan
    from mdir_hf.comparison.progress import Progress
    from mdir_hf.errors import (
        ByteBudgetError,
        GatedRepositoryError,
        MdirError,
        MemoryBudgetError,
        RepositoryNotFoundError,
        StoppedError,
    )
    from mdir_hf.figures import figure_bytes, figure_img
    from mdir_hf.hub.resolve import ResolvedModel, resolve_model
    from mdir_hf.names import shown_name
    from mdir_hf.report import (
        Fact,
        FigureName,
        HomologyReport,
        LayersReport,
        Level,
        Listing,
        MatrixArrays,
        MatrixReport,
        ModelSummary,
        ModuleReport,
        PlaceboResult,
        Reason,
        ReportArrays,
        Section,
        SectionKind,
        SettledBy,
        Transformation,
        Verdict,
        describe,
    )
    from mdir_hf.report.reproduce import compare_command
    from mdir_hf.saving.html import section_html

_HOME_OF = {
    "Badge": "mdir_hf.cards.badge",
    "ByteBudgetError": "mdir_hf.errors",
    "DeclaredLineage": "mdir_hf.cards.declared",
    "Fact": "mdir_hf.report",
    "FigureName": "mdir_hf.report",
    "GatedRepositoryError": "mdir_hf.errors",
    "HomologyChecker": "mdir_hf.checker",
    "HomologyReport": "mdir_hf.report",
    "LayersReport": "mdir_hf.report",
    "Level": "mdir_hf.report",
    "Listing": "mdir_hf.report",
    "MatrixArrays": "mdir_hf.report",
    "MatrixReport": "mdir_hf.report",
    "MdirError": "mdir_hf.errors",
    "MemoryBudgetError": "mdir_hf.errors",
    "ModelSummary": "mdir_hf.report",
    "ModuleReport": "mdir_hf.report",
    "PlaceboResult": "mdir_hf.report",
    "Progress": "mdir_hf.comparison.progress",
    "ReadPlan": "mdir_hf.comparison.plan",
    "Reason": "mdir_hf.report",
    "ReportArrays": "mdir_hf.report",
    "RepositoryNotFoundError": "mdir_hf.errors",
    "ResolvedModel": "mdir_hf.hub.resolve",
    "Section": "mdir_hf.report",
    "SectionKind": "mdir_hf.report",
    "SettledBy": "mdir_hf.report",
    "StoppedError": "mdir_hf.errors",
    "Transformation": "mdir_hf.report",
    "Verdict": "mdir_hf.report",
    "compare_command": "mdir_hf.report.reproduce",
    "declared_lineage": "mdir_hf.cards.declared",
    "describe": "mdir_hf.report",
    "figure_bytes": "mdir_hf.figures",
    "figure_img": "mdir_hf.figures",
    "make_badge": "mdir_hf.cards.badge",
    "resolve_model": "mdir_hf.hub.resolve",
    "section_html": "mdir_hf.saving.html",
    "shown_name": "mdir_hf.names",
}

__all__ = [
    "Badge",
    "ByteBudgetError",
    "DeclaredLineage",
    "Fact",
    "FigureName",
    "GatedRepositoryError",
    "HomologyChecker",
    "HomologyReport",
    "LayersReport",
    "Level",
    "Listing",
    "MatrixArrays",
    "MatrixReport",
    "MdirError",
    "MemoryBudgetError",
    "ModelSummary",
    "ModuleReport",
    "PlaceboResult",
    "Progress",
    "ReadPlan",
    "Reason",
    "ReportArrays",
    "RepositoryNotFoundError",
    "ResolvedModel",
    "Section",
    "SectionKind",
    "SettledBy",
    "StoppedError",
    "Transformation",
    "Verdict",
    "__version__",
    "compare_command",
    "declared_lineage",
    "describe",
    "figure_bytes",
    "figure_img",
    "make_badge",
    "resolve_model",
    "section_html",
    "shown_name",
]


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that ``import mdir_hf`` costs no torch."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'mdir_hf' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
