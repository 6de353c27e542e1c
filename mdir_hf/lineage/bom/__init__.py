"""Bills of materials (CycloneDX ML-BOM), which are written from measurements and checked against weights."""

from __future__ import annotations

from mdir_hf.installing import require_extra


def require_bom() -> None:
    """Raise ``MissingExtraError`` unless cyclonedx-python-lib is installed."""
    require_extra("bom", "cyclonedx", purpose="bills of materials are written with cyclonedx-python-lib")
