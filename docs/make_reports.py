"""Renew the reports and figures of README and the site: ``python docs/make_reports.py``.

The models come from ``benchmarks/real``, read back from quantised GGUF files in ``MDIR_HF_REAL_CACHE``; missing ones
are fetched and built. A local Hub serves them, and they are compared with empty caches. ``docs/reports`` gets the
reports as JSON, ``docs/images`` their figures. This takes half an hour of one core from scratch, or ten minutes with
built models.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from benchmarks.real.workshop import Model, built
from mdir_hf.demo.loopback import LoopbackHub

DOCS = Path(__file__).parent
BASE = "smollm2-135m-instruct"
OWNER = "real"

# Name of the report -> the model to compare with the base, the level, the figures on the site.
REPORTS = {
    "fine-tune": ("smollm2-135m-instruct/tuned-1e-4", "auto", ()),
    "permuted": ("smollm2-135m-instruct/permuted", "auto", ("embedding_matched",)),
    "rotated": ("smollm2-135m-instruct/rotated", "paper", ()),
    "strangers": ("qwen2.5-coder-0.5b-instruct", "auto", ("embedding",)),
}


def served_name(model: str) -> str:
    """Return the name under which a model of the benchmark is served."""
    return f"{OWNER}/{model.replace('/', '-')}"


def main() -> None:
    """Compare the models and write the results."""
    (DOCS / "reports").mkdir(exist_ok=True)
    with LoopbackHub() as hub, tempfile.TemporaryDirectory() as home:
        # Set before the import of the Hub client, which reads its environment then.
        os.environ |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": home}
        from mdir_hf import HomologyChecker
        from mdir_hf.render.figures import figure_bytes

        for name in (BASE, *(model for model, _, _ in REPORTS.values())):
            hub.add_repository(served_name(name), built(Model(*name.split("/"))))
        for name, (model, level, figures) in REPORTS.items():
            checker = HomologyChecker.from_pretrained(served_name(BASE), use_caches=False)
            report = checker.compare(served_name(model), level=level, describes=bool(figures), progress=False)
            (DOCS / "reports" / f"{name}.json").write_text(json.dumps(report.to_dict()) + "\n", "utf-8")
            drawn = report.figures()
            for figure in figures:
                (DOCS / "images" / f"{name}-{figure}.png").write_bytes(figure_bytes(drawn[figure], "png"))
            print(name, report.verdict, report.log10_p, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
