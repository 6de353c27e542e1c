"""Draw docs/images from the demo's lineage: ``python docs/draw_images.py [FOLDER]``.

FOLDER holds the models, ``demo-out/models`` by default; they are built there first if it is empty (a minute or two).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from mdir_hf import HomologyChecker, figure_bytes
from mdir_hf.demo.lineage import build_lineage

IMAGES = Path(__file__).parent / "images"


def main(folder: Path) -> None:
    """Compare the base with its permuted descendant and write the two views of their embeddings."""
    lineage = build_lineage(folder)
    permuted = next(member for member in lineage.candidates if member.repo == "demo/permuted")
    report = HomologyChecker.from_pretrained(lineage.reference.folder).compare(permuted.folder, progress=False)
    named = replace(
        report,
        reference=replace(report.reference, repo=lineage.reference.repo),
        candidate=replace(report.candidate, repo=permuted.repo),
    )
    figures = named.figures()
    for name in ("embedding", "embedding_matched"):
        (IMAGES / f"{name}.png").write_bytes(figure_bytes(figures[name], "png"))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-out/models"))
