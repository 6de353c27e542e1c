"""How to have the same comparison again: on a command line, in Python, from a program; and the badge."""

from __future__ import annotations

import base64
import json
from typing import Any

from mdir_hf import HomologyReport, ModelSummary, __version__, make_badge
from mdir_space.markup import code, download, facts, number, prose, text
from mdir_space.question import DEFAULT_ALPHA

LONGEST_LINE = 80


def pinned_name(model: ModelSummary) -> str:
    """Return a model's name at the commit that was read."""
    return model.repo if model.commit is None else f"{model.repo}@{model.commit}"


def shell_word(word: str) -> str:
    """Return a word as a POSIX shell takes it."""
    import shlex

    return shlex.quote(word)


def command_line(reference: str, candidate: str, level: str, alpha: float) -> str:
    """Return the command that runs a comparison on the visitor's own machine."""
    words = ["mdir-hf compare", shell_word(reference), shell_word(candidate)]
    words += [f"--level {level}"] if level != "auto" else []
    words += [f"--alpha {alpha:g}"] if alpha != DEFAULT_ALPHA else []
    line = " ".join(words)
    return line if len(line) <= LONGEST_LINE else " \\\n  ".join(words)


def python_lines(report: HomologyReport) -> str:
    """Return the lines of Python that run the comparison again."""
    options = [] if report.alpha == DEFAULT_ALPHA else [f"alpha={report.alpha:g}"]
    options += [] if report.seed == 0 else [f"seed={report.seed}"]
    reference = ", ".join([repr(pinned_name(report.reference)), *options])
    level = "" if report.level == "auto" else f", level={report.level!r}"
    return (
        "from mdir_hf import HomologyChecker\n\n"
        f"checker = HomologyChecker.from_pretrained({reference})\n"
        f"report = checker.compare({pinned_name(report.candidate)!r}{level})\n"
        "print(report)"
    )


def slim_report(report: HomologyReport) -> dict[str, Any]:
    """Return the report without what is only good for pictures: for programs and agents, some kilobytes.

    The verdict stands in it in words, beside what it means and does not mean.
    """
    body = report.to_dict()
    for name in ("embedding", "unembedding"):
        if body[name] is not None:
            body[name] = {key: value for key, value in body[name].items() if key != "looks"}
    if body["layers"] is not None:
        body["layers"] = {key: value for key, value in body["layers"].items() if key != "matrix"}
    if body["modules"] is not None:
        best: dict[str, float] = {}
        for module in body["modules"]:
            if module["role"] != "experts":
                best[module["role"]] = min(best.get(module["role"], 0.0), module["log10_p"])
        body["modules"] = best
    body["io"] = {key: value for key, value in body["io"].items() if key != "files"}
    words = {
        "headline": report.headline,
        "means": report.means,
        "does_not_mean": list(report.does_not_mean),
    }
    plain: dict[str, Any] = json.loads(json.dumps({**words, **body}))
    return plain


def reproduce_panel(report: HomologyReport, *, server: str, is_example: bool = False) -> str:
    """Commands, code, commits and the report itself.

    Args:
        report: The report.
        server: Base address of this server, for programs.
        is_example: The models are on no Hub; the demo builds them.
    """
    models = (("Reference", report.reference), ("Candidate", report.candidate))
    rows = [
        (
            f"{side} commit",
            f"<code>{text(model.commit)}</code>" if model.commit else '<span class="absent">no commit</span>',
            f"{model.repo}: {_model_facts(model)}",
        )
        for side, model in models
    ]
    rows += [
        ("Seed", number(report.seed), "Of every random choice; the same seed reads the same rows."),
        ("Version", text(report.version), "Of mdir-hf."),
        ("Read", number(len(report.io.files), unit="files"), f"In {report.io.requests:,} requests."),
    ]
    stem = "-".join(_file_word(model.repo) for _, model in models)
    links = download(report.to_json(), f"{stem}.json", "Download the report (JSON)", "application/json")
    parts = [
        prose(
            "These models are on no Hub: the first command builds them and compares them."
            if is_example
            else "The same commits, level, alpha and seed give the same numbers."
        ),
        code("mdir-hf demo" if is_example else _command(report), "On the command line"),
        code(python_lines(report), "In Python"),
        f'<p class="downloads">{links}</p>',
        facts(rows, "What was compared"),
    ]
    if not is_example and report.reference.commit and report.candidate.commit:
        parts.append(code(_program_lines(report, server), "From a program (this Space, gradio_client)"))
        parts.append(
            prose(
                "Agents find the same as an MCP tool at the address of this page followed by gradio_api/mcp/. Send a "
                "token of yours in the header X-HF-Token to have gated models read; it is used for that call only."
            )
        )
    return "".join(parts)


def _command(report: HomologyReport) -> str:
    names = (pinned_name(report.reference), pinned_name(report.candidate))
    return "pip install mdir-hf\n" + command_line(*names, report.level, report.alpha)


def _program_lines(report: HomologyReport, server: str) -> str:
    return (
        "from gradio_client import Client\n\n"
        f"report = Client({server!r}).predict(\n"
        f"    {pinned_name(report.reference)!r},\n"
        f"    {pinned_name(report.candidate)!r},\n"
        f"    {report.level!r},\n"
        f"    {report.alpha:g},\n"
        "    api_name='/compare',\n"
        ")\n"
        "print(report['verdict'], report['log10_p'])"
    )


def _model_facts(model: ModelSummary) -> str:
    known = [model.architecture]
    known += [f"width {model.hidden_size:,}"] if model.hidden_size else []
    known += [f"{model.layers} layers"] if model.layers else []
    known += [f"{model.vocabulary:,} rows of embedding"] if model.vocabulary else []
    known += [f"quantised: {model.quantization}"] if model.quantization else []
    return ", ".join(known)


def _file_word(repo: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in repo)[-60:] or "model"


def badge_panel(report: HomologyReport, link: str) -> str:
    """The badge of a result, and how to show it."""
    badge = make_badge(report)
    picture = base64.b64encode(badge.svg.encode()).decode("ascii")
    report_url = link or "report.json"
    return "".join(
        [
            prose(
                "A badge says what was measured and links to it. It names nobody, and no direction. Put the two files "
                "into your repository, and the line into its card."
            ),
            f'<p class="badge"><img src="data:image/svg+xml;base64,{picture}" alt="{text(badge.label)}: '
            f'{text(badge.message)}"></p>',
            '<p class="downloads">'
            + download(badge.svg, "badge.svg", "Download badge.svg", "image/svg+xml")
            + download(report.to_json(), "report.json", "Download report.json", "application/json")
            + "</p>",
            code(badge.markdown("badge.svg", report_url), "Markdown"),
            code(badge.endpoint_json.strip(), "For a badge service (shields endpoint)"),
            prose(
                "mdir-hf badge report.json makes the same files on the command line, and mdir-hf verify-badge "
                f"recomputes a badge from its commits. Made by mdir-hf {__version__}."
            ),
        ]
    )
