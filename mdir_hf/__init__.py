"""Test whether two language models share weight ancestry, from the weights alone and with a p-value.

This module exports the public API; all errors are in :mod:`mdir_hf.errors`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from mdir_hf._version import __version__ as __version__

if TYPE_CHECKING:
    from mdir_hf.comparison.api import HomologyChecker as HomologyChecker
    from mdir_hf.comparison.api import compare as compare
    from mdir_hf.comparison.check import ReportCheck as ReportCheck
    from mdir_hf.comparison.check import check_report as check_report
    from mdir_hf.comparison.plan import ReadPlan as ReadPlan
    from mdir_hf.comparison.settings import Listeners as Listeners
    from mdir_hf.comparison.settings import Settings as Settings
    from mdir_hf.errors import MdirError as MdirError
    from mdir_hf.lineage.bom.check import check_bom as check_bom
    from mdir_hf.lineage.bom.documents import make_bom as make_bom
    from mdir_hf.lineage.bom.documents import read_model_facts as read_model_facts
    from mdir_hf.lineage.bom.read import read_bom as read_bom
    from mdir_hf.lineage.cards.badge import make_badge as make_badge
    from mdir_hf.lineage.cards.declared import declared_lineage as declared_lineage
    from mdir_hf.lineage.cards.verify_lineage import LineageCheck as LineageCheck
    from mdir_hf.lineage.cards.verify_lineage import verify_lineage as verify_lineage
    from mdir_hf.lineage.index.base_index import BaseIndex as BaseIndex
    from mdir_hf.lineage.index.identify import Identification as Identification
    from mdir_hf.lineage.index.identify import identify as identify
    from mdir_hf.lineage.survey.results import SurveyReport as SurveyReport
    from mdir_hf.lineage.survey.run import survey as survey
    from mdir_hf.lineage.training.callback import LineageCallback as LineageCallback
    from mdir_hf.lineage.training.watching import watch as watch
    from mdir_hf.model.open import NamedModel as NamedModel
    from mdir_hf.model.open import Reading as Reading
    from mdir_hf.reconstruction.reconstruct import Aligned as Aligned
    from mdir_hf.reconstruction.reconstruct import align as align
    from mdir_hf.reconstruction.reconstruct import reconstruct as reconstruct
    from mdir_hf.reconstruction.records import Reconstruction as Reconstruction
    from mdir_hf.reconstruction.storage import load_reconstruction as load_reconstruction
    from mdir_hf.report import (
        Assumption as Assumption,
    )
    from mdir_hf.report import (
        HomologyReport as HomologyReport,
    )
    from mdir_hf.report import (
        Level as Level,
    )
    from mdir_hf.report import (
        Reason as Reason,
    )
    from mdir_hf.report import (
        SettledBy as SettledBy,
    )
    from mdir_hf.report import (
        Verdict as Verdict,
    )

_NAMES = {
    "mdir_hf.comparison.api": "HomologyChecker compare",
    "mdir_hf.comparison.check": "ReportCheck check_report",
    "mdir_hf.comparison.plan": "ReadPlan",
    "mdir_hf.comparison.settings": "Listeners Settings",
    "mdir_hf.errors": "MdirError",
    "mdir_hf.lineage.bom.check": "check_bom",
    "mdir_hf.lineage.bom.documents": "make_bom read_model_facts",
    "mdir_hf.lineage.bom.read": "read_bom",
    "mdir_hf.lineage.cards.badge": "make_badge",
    "mdir_hf.lineage.cards.declared": "declared_lineage",
    "mdir_hf.lineage.cards.verify_lineage": "LineageCheck verify_lineage",
    "mdir_hf.lineage.index.base_index": "BaseIndex",
    "mdir_hf.lineage.index.identify": "Identification identify",
    "mdir_hf.lineage.survey.run": "survey",
    "mdir_hf.lineage.survey.results": "SurveyReport",
    "mdir_hf.lineage.training.callback": "LineageCallback",
    "mdir_hf.lineage.training.watching": "watch",
    "mdir_hf.model.open": "NamedModel Reading",
    "mdir_hf.reconstruction.reconstruct": "Aligned align reconstruct",
    "mdir_hf.reconstruction.records": "Reconstruction",
    "mdir_hf.reconstruction.storage": "load_reconstruction",
    "mdir_hf.report": "Assumption HomologyReport Level Reason SettledBy Verdict",
}
_HOME_OF = {name: home for home, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that ``import mdir_hf`` does not import torch."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'mdir_hf' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return ["__version__", *_HOME_OF]
