"""Do two language models share weight ancestry? An answer from the weights alone, with a p-value."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from mdir_hf._version import __version__

if TYPE_CHECKING:
    from mdir_hf.comparison.api import HomologyChecker, compare
    from mdir_hf.comparison.plan import ReadPlan
    from mdir_hf.comparison.progress import Progress
    from mdir_hf.comparison.settings import Listeners, Settings
    from mdir_hf.errors import (
        ByteBudgetError,
        GatedRepositoryError,
        MdirError,
        MemoryBudgetError,
        RepositoryNotFoundError,
        SeveralModelsError,
        StoppedError,
    )
    from mdir_hf.installing import install_command
    from mdir_hf.lineage.cards.badge import Badge, make_badge
    from mdir_hf.lineage.cards.declared import DeclaredLineage, declared_lineage
    from mdir_hf.lineage.cards.verify_lineage import BaseCheck, LineageCheck, verify_lineage
    from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint
    from mdir_hf.lineage.index.base_index import BaseIndex
    from mdir_hf.lineage.index.identify import Ancestor, Identification, identify
    from mdir_hf.lineage.index.planning import IdentificationPlan, plan_identification
    from mdir_hf.lineage.survey.arriving import survey_arriving
    from mdir_hf.lineage.survey.drawing import FamilyDistances, draw_survey, family_distances, survey_cells
    from mdir_hf.lineage.survey.reads import SurveyReads, plan_reads
    from mdir_hf.lineage.survey.requests import PlannedRequests, planned_requests
    from mdir_hf.lineage.survey.results import ModelResult, PairResult, SurveyReport
    from mdir_hf.lineage.survey.run import SurveyPlan
    from mdir_hf.lineage.training.callback import LineageCallback
    from mdir_hf.lineage.training.watching import ModelWatch, watch
    from mdir_hf.lineage.trees.tree import FamilyTree, grow_tree
    from mdir_hf.model.hub.listing import ModelList, models_of_author, models_of_collection
    from mdir_hf.model.hub.resolve import ResolvedModel, resolve_model
    from mdir_hf.model.open import NamedModel, Reading
    from mdir_hf.names import shown_name, visible_text
    from mdir_hf.render.description import describe
    from mdir_hf.render.figures import CellGrid, figure_bytes, figure_cells, figure_img, pair_tests
    from mdir_hf.render.html import section_html
    from mdir_hf.render.reproduce import compare_command
    from mdir_hf.render.sections import Fact, FigureName, Listing, Section, SectionKind
    from mdir_hf.report import (
        Exclusion,
        HomologyReport,
        LayersResult,
        Level,
        MatrixArrays,
        MatrixResult,
        ModelSummary,
        ModuleResult,
        PlaceboResult,
        Reason,
        ReportArrays,
        SettledBy,
        Transformation,
        Verdict,
    )

_NAMES = {
    "mdir_hf.lineage.cards.badge": "Badge make_badge",
    "mdir_hf.lineage.cards.declared": "DeclaredLineage declared_lineage",
    "mdir_hf.comparison.api": "HomologyChecker compare",
    "mdir_hf.lineage.cards.verify_lineage": "BaseCheck LineageCheck verify_lineage",
    "mdir_hf.model.open": "NamedModel Reading",
    "mdir_hf.comparison.settings": "Listeners Settings",
    "mdir_hf.lineage.fingerprints.fingerprint": "Fingerprint",
    "mdir_hf.model.hub.listing": "ModelList models_of_author models_of_collection",
    "mdir_hf.lineage.index.base_index": "BaseIndex",
    "mdir_hf.lineage.index.identify": "Ancestor Identification identify",
    "mdir_hf.lineage.index.planning": "IdentificationPlan plan_identification",
    "mdir_hf.lineage.survey.arriving": "survey_arriving",
    "mdir_hf.lineage.survey.reads": "SurveyReads plan_reads",
    "mdir_hf.lineage.survey.requests": "PlannedRequests planned_requests",
    "mdir_hf.lineage.survey.results": "ModelResult PairResult SurveyReport",
    "mdir_hf.lineage.survey.run": "SurveyPlan",
    "mdir_hf.lineage.survey.drawing": "FamilyDistances draw_survey family_distances survey_cells",
    "mdir_hf.lineage.trees.tree": "FamilyTree grow_tree",
    "mdir_hf.comparison.plan": "ReadPlan",
    "mdir_hf.comparison.progress": "Progress",
    "mdir_hf.errors": (
        "ByteBudgetError GatedRepositoryError MdirError MemoryBudgetError RepositoryNotFoundError SeveralModelsError "
        "StoppedError "
    ),
    "mdir_hf.render.figures": "CellGrid figure_bytes figure_cells figure_img pair_tests",
    "mdir_hf.model.hub.resolve": "ResolvedModel resolve_model",
    "mdir_hf.installing": "install_command",
    "mdir_hf.names": "shown_name visible_text",
    "mdir_hf.report": (
        "Exclusion HomologyReport LayersResult Level MatrixArrays MatrixResult ModelSummary ModuleResult "
        "PlaceboResult Reason ReportArrays SettledBy Transformation Verdict"
    ),
    "mdir_hf.render.description": "describe",
    "mdir_hf.render.sections": "Fact FigureName Listing Section SectionKind",
    "mdir_hf.render.reproduce": "compare_command",
    "mdir_hf.render.html": "section_html",
    "mdir_hf.lineage.training.callback": "LineageCallback",
    "mdir_hf.lineage.training.watching": "ModelWatch watch",
}
_HOME_OF = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Ancestor",
    "Badge",
    "BaseCheck",
    "BaseIndex",
    "ByteBudgetError",
    "CellGrid",
    "DeclaredLineage",
    "Exclusion",
    "Fact",
    "FamilyDistances",
    "FamilyTree",
    "FigureName",
    "Fingerprint",
    "GatedRepositoryError",
    "HomologyChecker",
    "HomologyReport",
    "Identification",
    "IdentificationPlan",
    "LayersResult",
    "Level",
    "LineageCallback",
    "LineageCheck",
    "Listeners",
    "Listing",
    "MatrixArrays",
    "MatrixResult",
    "MdirError",
    "MemoryBudgetError",
    "ModelList",
    "ModelResult",
    "ModelSummary",
    "ModelWatch",
    "ModuleResult",
    "NamedModel",
    "PairResult",
    "PlaceboResult",
    "PlannedRequests",
    "Progress",
    "ReadPlan",
    "Reading",
    "Reason",
    "ReportArrays",
    "RepositoryNotFoundError",
    "ResolvedModel",
    "Section",
    "SectionKind",
    "Settings",
    "SettledBy",
    "SeveralModelsError",
    "StoppedError",
    "SurveyPlan",
    "SurveyReads",
    "SurveyReport",
    "Transformation",
    "Verdict",
    "__version__",
    "compare",
    "compare_command",
    "declared_lineage",
    "describe",
    "draw_survey",
    "family_distances",
    "figure_bytes",
    "figure_cells",
    "figure_img",
    "grow_tree",
    "identify",
    "install_command",
    "make_badge",
    "models_of_author",
    "models_of_collection",
    "pair_tests",
    "plan_identification",
    "plan_reads",
    "planned_requests",
    "resolve_model",
    "section_html",
    "shown_name",
    "survey_arriving",
    "survey_cells",
    "verify_lineage",
    "visible_text",
    "watch",
]


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that ``import mdir_hf`` costs no torch."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'mdir_hf' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
