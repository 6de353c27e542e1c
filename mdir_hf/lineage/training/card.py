"""The section of a model card after training: verdict, base, and how far each role has moved."""

from __future__ import annotations

from pathlib import Path

from mdir_hf.lineage.cards.badge import make_badge
from mdir_hf.lineage.cards.card import with_section
from mdir_hf.lineage.cards.declared import README
from mdir_hf.lineage.cards.front_matter import parse_card
from mdir_hf.lineage.cards.section import BADGE_PATH, BEGIN, END, REPORT_PATH
from mdir_hf.lineage.training.drift import Drift
from mdir_hf.render.folder import write_file
from mdir_hf.render.markdown import plain
from mdir_hf.report import HomologyReport, ModelSummary


def add_to_card(folder: Path, report: HomologyReport, drift: Drift) -> tuple[Path, ...]:
    """Add a section to the card in a folder, and its report and badge as files.

    Args:
        folder: Folder to be pushed. An existing section is replaced; otherwise the section is appended.
        report: Comparison of the base (reference) with the trained model in memory (candidate).
        drift: How far the model has moved.

    Returns:
        The paths written.

    Raises:
        CardError: If the card cannot be read or changed safely.
    """
    path = folder / README
    badge = make_badge(report)
    before = path.read_bytes() if path.exists() else b""
    card = with_section(parse_card(before, subject=str(path)), _section(report, drift), str(path))
    (folder / REPORT_PATH).parent.mkdir(parents=True, exist_ok=True)
    contents = {REPORT_PATH: report.to_json() + "\n", BADGE_PATH: badge.svg}
    written = [write_file(folder / name, text.encode()) for name, text in contents.items()]
    return (*written, write_file(path, card.to_bytes()))


def _section(report: HomologyReport, drift: Drift) -> str:
    badge = make_badge(report)
    moved = (
        f"| {role} | {role_drift.relative:.2%} | {role_drift.trace_over_rank:.4f} |"
        for role, role_drift in drift.by_role().items()
    )
    lines = [
        BEGIN,
        "<!-- Written by `LineageCallback` of mdir-hf, which replaces everything up to the end marker. -->",
        "## Weight ancestry",
        "",
        badge.markdown(BADGE_PATH, REPORT_PATH),
        "",
        f"**{badge.claim.sentence.replace('<', '&lt;')}** ({badge.claim.numbers}). "
        f"Compared at the end of training, in memory, with {_base(report.reference)}.",
        "",
        f"| after {drift.step:,} steps | moved, of the size of the base | trace over rank |",
        "|---|---|---|",
        *moved,
        "",
        f"Trace over rank is 1 if every channel still matches its own in the base. {badge.claim.what_p_says}",
        "",
        f"Measured by mdir-hf {plain(report.version)}, seed {report.seed}.",
        END,
    ]
    return "\n".join(lines) + "\n"


def _base(model: ModelSummary) -> str:
    if model.commit is None:
        return "its base, a folder or a model in memory"
    return f"{plain(model.repo)} at commit `{model.commit[:12]}`"
