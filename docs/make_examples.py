"""Make the results that the Space opens at once, and the pictures of its page on the method: ``make examples``.

Every report is what ``checker.compare`` returned on models of the demo, read from a Hub on this machine, with
empty caches. Beside it lie the arrays that its figures are drawn from, in 256 steps: no JSON holds them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from mdir_hf import HomologyReport, MatrixArrays

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "space" / "examples"
PICTURES = ROOT / "space" / "pictures"
MODELS = Path("demo-out") / "models"

# Member of the lineage -> what the button says, level.
EXAMPLES = {
    "fine-tune": ("A fine-tune", "auto"),
    "permuted": ("Channels reordered", "body"),
    "rotated": ("Rotated weights", "auto"),
    "other-tokenizer": ("Another tokenizer", "body"),
    "other-seed": ("Two strangers", "auto"),
}

# Picture of an idea -> member, figure of its report.
IDEAS = {
    "relatives": ("fine-tune", "embedding"),
    "strangers": ("other-seed", "embedding"),
    "reordered": ("permuted", "embedding"),
    "matched": ("permuted", "embedding_matched"),
    "chance": ("permuted", "null"),
    "settled": ("fine-tune", "looks"),
    "looks": ("other-seed", "looks"),
    "layers": ("permuted", "layers"),
    "modules": ("rotated", "modules"),
}


def main() -> None:
    """Build or take the lineage, compare, write."""
    import numpy as np

    from mdir_hf.demo.lineage import build_lineage
    from mdir_hf.demo.loopback import LoopbackHub

    with tempfile.TemporaryDirectory() as home, LoopbackHub() as hub:
        os.environ |= {"HF_HOME": home, "HF_ENDPOINT": hub.endpoint}
        lineage = build_lineage(MODELS)
        members = {member.repo.rpartition("/")[2]: member for member in lineage.members}
        for member in lineage.members:
            hub.add_repository(member.repo, member.folder)
        from mdir_hf import HomologyChecker

        TARGET.mkdir(exist_ok=True)
        index, reports = [], {}
        for name, (title, level) in EXAMPLES.items():
            member = members[name]
            os.environ["MDIR_HF_CACHE"] = str(Path(home) / name)
            checker = HomologyChecker.from_pretrained(
                lineage.reference.repo, token=False, cache_dir=Path(home) / name / "hub"
            )
            report = checker.compare(member.repo, level=level, progress=False)
            (TARGET / f"{name}.json").write_text(report.to_json() + "\n", encoding="utf-8")
            reports[name] = report
            # Entries of a polar factor, reduced to block maxima, lie between 0 and 1.
            arrays = {
                key: np.rint(255 * array).astype(np.uint8) if np.issubdtype(array.dtype, np.floating) else array
                for name in report.matrices
                for key, array in _stored(name, getattr(report.arrays, name))
            }
            np.savez_compressed(TARGET / f"{name}.npz", **arrays)
            note = (
                "A stored result, measured on small models that “mdir-hf demo” trains; they are not on the Hub. "
                f"{lineage.reference.repo} is {lineage.reference.description}. {member.repo} is {member.description}."
            )
            index.append({"name": name, "title": title, "note": note})
            sys.stdout.write(f"{name}: {report.verdict.value}, log10 p {report.log10_p:.0f}\n")
        _draw(reports)
    (TARGET / "index.json").write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _stored(name: str, arrays: MatrixArrays) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of one pair of matrices under the names that the Space reads them by."""
    kinds = {"": arrays.polar, "_matched": arrays.matched, "_channels": arrays.channels}
    yield from ((name + kind, array) for kind, array in kinds.items() if array is not None)


def _draw(reports: dict[str, HomologyReport]) -> None:
    from mdir_hf import figure_bytes

    PICTURES.mkdir(exist_ok=True)
    alt = {}
    for idea, (name, figure_name) in IDEAS.items():
        for theme in ("light", "dark"):
            figure = reports[name].figures(dark=theme == "dark")[figure_name]
            (PICTURES / f"{idea}-{theme}.svg").write_bytes(figure_bytes(figure, "svg"))
        width, height = (round(96 * inches) for inches in figure.get_size_inches())
        alt[idea] = {"alt": str(figure.get_label()), "width": width, "height": height}
    (PICTURES / "index.json").write_text(json.dumps(alt, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
