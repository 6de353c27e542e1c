"""Write the JSON Schema of a report beside its classes: ``make schema``."""

from __future__ import annotations

import json
from pathlib import Path

from mdir_hf.report import json_schema

TARGET = Path(__file__).resolve().parent.parent / "mdir_hf" / "report" / "report.schema.json"

if __name__ == "__main__":
    TARGET.write_text(json.dumps(json_schema(), indent=1) + "\n", encoding="utf-8")
