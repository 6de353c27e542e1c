"""``compare --save``: a folder with the report as JSON, Markdown and one self-contained page, and its figures."""

from __future__ import annotations

import base64
import html
import os
import tempfile
from pathlib import Path

from mdir_hf.errors import InputError
from mdir_hf.figures import draw_figures, figure_bytes
from mdir_hf.report import HEADLINE, MEANING, HomologyReport

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --soft: #f3f4f6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #111418; --soft: #1c2128; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
pre { background: var(--soft); padding: 1rem; overflow-x: auto; font-size: .85rem; }
img { max-width: 100%; height: auto; background: #fff; }
figure { margin: 1.5rem 0; } figcaption { font-size: .9rem; }
"""


def check_save_folder(folder: Path) -> None:
    """Fail before anything is read where nothing could be written.

    Raises:
        InputError: If the place is a file, or is not writable.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"cannot save into {folder}: it is a file; name a folder")
    parent = folder
    while not parent.exists():
        parent = parent.parent
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"cannot save into {folder}: {parent} is not writable")


def save_report(report: HomologyReport, folder: Path) -> tuple[Path, ...]:
    """Write report.json, report.md, report.html and the figures (SVG and PNG, light and dark).

    Every file is written beside its place and moved into it, so that an interruption leaves no half of one.

    Args:
        report: What to save.
        folder: Made if it does not exist; files of the same names are replaced.

    Returns:
        The paths written.

    Raises:
        InputError: If the folder cannot be written, or matplotlib is missing.
    """
    contents: dict[str, bytes] = {"report.json": (report.to_json() + "\n").encode()}
    captions: dict[str, str] = {}
    for name, figure in draw_figures(report).items():
        captions[name] = str(figure.get_label())
        contents[f"{name}.svg"] = figure_bytes(figure, "svg")
        contents[f"{name}.png"] = figure_bytes(figure, "png")
    for name, figure in draw_figures(report, dark=True).items():
        contents[f"{name}-dark.svg"] = figure_bytes(figure, "svg")
        contents[f"{name}-dark.png"] = figure_bytes(figure, "png")
    contents["report.md"] = _markdown(report, captions).encode()
    contents["report.html"] = _page(report, captions, contents).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return tuple(_write(folder / name, content) for name, content in contents.items())
    except OSError as exc:
        raise InputError(f"cannot save into {folder}: {exc.strerror}") from exc


def _write(path: Path, content: bytes) -> Path:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def _title(report: HomologyReport) -> str:
    return f"{report.reference.repo} and {report.candidate.repo}"


def _markdown(report: HomologyReport, captions: dict[str, str]) -> str:
    # Repo names are the users' words: inside a code block nothing in them is markup.
    parts = [
        "# Weight ancestry of two models",
        f"**{HEADLINE[report.verdict]}** (log10 p = {report.log10_p:.1f}, alpha = {report.alpha:g}).",
        f"```\n{str(report).replace('```', '` ` `')}\n```",
    ]
    parts += [f"![{_plain(caption)}]({name}.png)" for name, caption in captions.items()]
    return "\n\n".join(parts) + "\n"


def _plain(text: str) -> str:
    return "".join(" " if c in "[]()<>`!\n" else c for c in text)


def _page(report: HomologyReport, captions: dict[str, str], contents: dict[str, bytes]) -> str:
    figures = "\n".join(
        f'<figure><img alt="{html.escape(caption)}" src="data:image/png;base64,'
        f'{base64.b64encode(contents[f"{name}.png"]).decode()}"><figcaption>{html.escape(caption)}</figcaption></figure>'
        for name, caption in captions.items()
    )
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(_title(report))}</title><style>{STYLE}</style></head>
<body><main>
<h1>{html.escape(HEADLINE[report.verdict])}</h1>
<p>{html.escape(_title(report))}: log10 p = {report.log10_p:.1f}, alpha = {report.alpha:g}.</p>
<p>{html.escape(MEANING)}</p>
<pre tabindex="0">{html.escape(str(report))}</pre>
{figures}
<details><summary>The report as JSON</summary><pre tabindex="0">{html.escape(report.to_json())}</pre></details>
</main></body>
</html>
"""
