"""Save the family of a model to a folder: JSON, a section for its model card, and a figure."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from mdir_hf.errors import InputError
from mdir_hf.lineage.cards.verify_lineage import MEASURED
from mdir_hf.lineage.family import Family, layers_text
from mdir_hf.render.folder import write_file
from mdir_hf.render.markdown import plain


def save_family(family: Family, folder: Path) -> tuple[Path, ...]:
    """Write ``family.json``, ``family.md`` and, for two or more aligned relatives, ``family.svg``.

    Args:
        family: The family to save.
        folder: Output folder. It is created if necessary; existing files are replaced.

    Returns:
        The paths written. Without matplotlib there is no figure.

    Raises:
        InputError: If the folder cannot be written.
    """
    contents = {"family.json": (family.to_json() + "\n").encode()}
    if family.apart is not None and find_spec("matplotlib") is not None:
        from mdir_hf.render.figures import draw_dendrogram, figure_bytes

        contents["family.svg"] = figure_bytes(draw_dendrogram([family.apart]), "svg")
    contents["family.md"] = family_section(family, has_picture="family.svg" in contents).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return tuple(write_file(folder / name, content) for name, content in contents.items())
    except OSError as exc:
        raise InputError(f"cannot write it: {exc.strerror}", subject=str(folder)) from exc


def family_section(family: Family, *, has_picture: bool = False) -> str:
    """Return a Markdown section for a model card: each relative, its declaration, measurement and layers."""
    ancestors = {} if family.found is None else {ancestor.base.repo: ancestor for ancestor in family.found.found}
    checks = {} if family.declared is None else {check.base: check for check in family.declared.bases}
    lines = ["## Weight ancestry", "", "| model | measured | declared | layers |", "|---|---|---|---|"]
    for name in dict.fromkeys((*family.relatives, *checks)):
        check, ancestor = checks.get(name), ancestors.get(name)
        if check is not None and check.report is not None:
            measured = f"{MEASURED[check.report.verdict]} ({check.report.strength})"
        else:
            measured = f"not measured: {check.why_not}" if check and ancestor is None else "shared weight ancestry"
            measured += f", {ancestor.evidence}" if ancestor is not None else ""
        layers = layers_text(family.layers[name]) if name in family.layers else ""
        declared = "yes" if check is not None else "no" if family.declared is not None else ""
        lines.append("| " + " | ".join(map(plain, (name, measured, declared, layers))) + " |")
    n_bases = 0 if family.found is None else family.found.n_bases
    lines += [
        "",
        *(["![Relatives, joined where their weights are nearest](family.svg)", ""] if has_picture else []),
        f"Searched among {n_bases} base models. Shared weights have no direction: they do not show which model came "
        "first.",
    ]
    return "\n".join(lines) + "\n"
