"""Hooks of the documentation site: generated pages, links that leave the folder, lists in GitHub's Markdown.

The generated pages are the command line (from argparse), the JSON of a report (from its schema and dataclasses), the
changes, and the notebooks with their output.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PICTURES = ROOT / "space" / "pictures"
SCHEMA = ROOT / "mdir_hf" / "report" / "report.schema.json"
sys.path.insert(0, str(ROOT))  # use the package of this clone and not an installed one

_FENCE = re.compile(r"^\s*(```|~~~)")
_ITEM = re.compile(r"^(\s*)(?:[-*]|\d+\.) ")
_LEAVES = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the repository, if CI or git knows it."""
    address = _build_hook().repository_address(ROOT)
    if address:
        config.repo_url = address
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    made: dict[str, str | bytes] = {
        "reference/cli.md": command_line_page(),
        "reference/schema.md": schema_page(),
        "reference/report.schema.json": SCHEMA.read_bytes(),
        "suspect.md": (ROOT / "space" / "mdir_space" / "page" / "suspect.md").read_text(encoding="utf-8"),
        "changes.md": (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        "index.md": start_page(),
    }
    for table in sorted((RESULTS / "pages").glob("*.md")):
        made[f"evidence/{table.name}"] = table_page(table)
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        text, pictures = notebook_page(notebook)
        made |= {f"notebooks/{notebook.stem}.md": text}
        made |= {f"notebooks/{name}": data for name, data in pictures.items()}
    for picture in sorted(RESULTS.glob("*.png")):
        made[f"images/results/{picture.name}"] = picture.read_bytes()
    for picture in sorted(PICTURES.glob("*-light.svg")):
        made[f"images/pictures/{picture.name}"] = picture.read_bytes()
    for place, content in made.items():
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Prepare a page: links that leave the folder, and blank lines before lists."""
    if page.file.src_uri == "changes.md":  # one folder higher in the repository
        markdown = re.sub(r"\]\(docs/", "](", markdown)
        markdown = re.sub(r"\]\((?!https?://|#)([A-Z]+\.md|mdir_hf/[^)]+)\)", r"](../\1)", markdown)
    markdown = markdown.replace("](../../benchmarks/results/pages/", "](../evidence/")
    markdown = markdown.replace("](../benchmarks/results/pages/", "](evidence/")
    markdown = markdown.replace("](../../benchmarks/results/", "](../images/results/")
    markdown = markdown.replace("](../benchmarks/results/", "](images/results/")
    markdown = markdown.replace("](../../space/pictures/", "](../images/pictures/")
    markdown = re.sub(r"(\]\([^)\s]*notebooks/[\w-]+)\.ipynb\)", r"\1.md)", markdown)
    return lists_apart(_links_out(markdown, config.repo_url or ""))


def start_page() -> str:
    """Return README.md as the first page of the site; its links and images start in ``docs``."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(\]\(|src=\")docs/", r"\1", text).replace("](CHANGELOG.md)", "](changes.md)")
    return re.sub(r"\]\((?!https?://|#)([A-Z]+\.(?:md|cff))\)", r"](../\1)", text)


def table_page(table: Path) -> str:
    """Return a page of measured tables; its links start in ``benchmarks/results/pages``."""
    text = table.read_text(encoding="utf-8")
    text = text.replace("](../../../docs/", "](../")
    return re.sub(r"\]\(\.\./([\w-]+\.png)\)", r"](../images/results/\1)", text)


def lists_apart(markdown: str) -> str:
    """Put a blank line between a paragraph and a list after it, as Python-Markdown requires."""
    lines: list[str] = []
    in_fence = False
    for line in markdown.split("\n"):
        if _FENCE.match(line):
            in_fence = not in_fence
        before = lines[-1] if lines else ""
        item = _ITEM.match(line)
        if item and not in_fence and before.strip() and not _ITEM.match(before) and not before.startswith((" ", "#")):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def command_line_page() -> str:
    """Return the page of every command with its options, from argparse."""
    from mdir_hf.cli.main import build_parser

    parser = build_parser()
    (commands,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    lines = ["# Command line", "", _escaped(parser.description or ""), ""]
    lines += ["Exit status: 0 for any verdict, 1 for a known error, 2 for wrong usage, 3 for a verdict named by"]
    lines += ["`--fail-on` or a statement that `verify` finds wrong. A model is `owner/name`, `owner/name@revision`,"]
    lines += ["`owner/name:Q4_K_M`, `owner/name/folder`, a Hub URL, a folder or a file.", ""]
    for name, command in commands.choices.items():
        lines += [f"## {name}", "", _escaped(command.description or ""), "", "```text", *_usage(command), "```", ""]
        lines += ["| option | |", "|---|---|"]
        for action in command._actions:
            if not action.help or action.help is argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
                continue
            lines.append(f"| {_option(action)} | {_escaped(_help(action))} |")
        lines.append("")
    return "\n".join(lines)


def schema_page() -> str:
    """Return the page of the fields of a report's JSON: types from the schema, texts from the dataclasses."""
    from mdir_hf.report import parts, result, terms

    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    classes = {**vars(terms), **vars(parts), **vars(result)}
    lines = [
        "# The JSON of a report",
        "",
        "`mdir-hf compare … --json` prints one object, `report.to_json()` returns it, `HomologyReport.from_json` reads",
        "it back and checks every field. The [JSON Schema](report.schema.json) is the contract; this page lists",
        "the same fields with their meaning. The field `schema` names the version of the contract.",
        "",
        *_fields("HomologyReport", schema, classes),
    ]
    for name, part in sorted(schema["$defs"].items()):
        lines += [f"## {name}", ""]
        made = classes.get(name)
        if made is not None and made.__doc__:
            lines += [_escaped(inspect.getdoc(made).partition("\n\n")[0].replace("\n", " ")), ""]
        if "enum" in part:
            lines += [", ".join(f"`{value}`" for value in part["enum"]) + ".", ""]
        elif "prefixItems" in part:
            lines += [f"A list: {', '.join(_type(one) for one in part['prefixItems'])}.", ""]
        else:
            lines += _fields(name, part, classes)
    return "\n".join(lines)


def notebook_page(notebook: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as a page with its stored output, and its images by name."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    lines: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            lines += [source, ""]
            continue
        language = "sh" if source.startswith("!") else "python"
        lines += [f"```{language}", source.removeprefix("!"), "```", ""]
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{notebook.stem}-{len(pictures)}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                alt = output["metadata"].get("image/png", {}).get("alt", "Picture")
                lines += [f'![{alt}]({name}){{ width="620" }}', ""]
                continue
            text = "".join(output.get("text", data.get("text/plain", "")))
            if text:
                lines += ["```text", text.rstrip("\n"), "```", ""]
    return "\n".join(lines), pictures


def _fields(name: str, part: dict[str, Any], classes: dict[str, Any]) -> Iterator[str]:
    made = classes.get(name)
    meaning = dict(_attributes(made)) if dataclasses.is_dataclass(made) else {}
    yield from ("| field | type | |", "|---|---|---|")
    for field, of in part["properties"].items():
        yield f"| `{field}` | {_type(of)} | {_escaped(meaning.get(field, ''))} |"
    yield ""


def _attributes(made: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - a dataclass
    """Yield names and texts of the "Attributes" sections of a class and its base classes."""
    for one in reversed(made.__mro__):
        _, _, section = (inspect.cleandoc(one.__doc__ or "")).partition("Attributes:\n")
        for name, text in re.findall(r"^    (\w+): (.+(?:\n        .+)*)", section, re.M):
            yield name, " ".join(text.split())


def _type(of: dict[str, Any]) -> str:
    if "$ref" in of:
        name = of["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in of:
        return " or ".join(_type(one) for one in of["anyOf"])
    if "const" in of:
        return f"`{json.dumps(of['const'])}`"
    if "enum" in of:
        return ", ".join(f"`{value}`" for value in of["enum"])
    if of.get("type") == "array":
        return f"list of {_type(of['items'])}" if "items" in of else "list"
    if of.get("type") == "object" and isinstance(of.get("additionalProperties"), dict):
        return f"object of {_type(of['additionalProperties'])}"
    return str(of.get("type", "any"))


def _usage(command: argparse.ArgumentParser) -> list[str]:
    wide = argparse.HelpFormatter(prog=command.prog, width=96)
    wide.add_usage(command.usage, command._actions, command._mutually_exclusive_groups, "")
    return wide.format_help().strip("\n").split("\n")


def _option(action: argparse.Action) -> str:
    shown = action.metavar or (action.dest.upper() if action.nargs != 0 and action.choices is None else None)
    if isinstance(shown, tuple):
        shown = " ".join(shown)
    if action.choices is not None and action.metavar is None:
        shown = "{" + ",".join(map(str, action.choices)) + "}"
    value = "" if action.nargs == 0 or shown is None else f" {shown}"
    names = ", ".join(f"{name}{value}" for name in action.option_strings) or str(shown)
    bar = "&#124;"  # a bar would end the table cell, and code shows entities unchanged
    return f"<code>{names.replace('|', bar)}</code>" if "|" in names else f"`{names}`"


def _help(action: argparse.Action) -> str:
    return (action.help or "") % {"default": action.default}


def _escaped(text: str) -> str:
    """Escape the text of a docstring or a help for a table cell."""
    from docs.roles import without_roles

    return without_roles(text).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _links_out(markdown: str, repository: str) -> str:
    """Point links that leave the documentation at the repository; without a repository, keep only their text."""

    def out(match: re.Match[str]) -> str:
        words, place, anchor = match[1], match[2].lstrip("./"), match[3] or ""
        if place == "CHANGELOG.md" or not (ROOT / place).exists():
            return match[0]
        return f"[{words}]({repository}/blob/HEAD/{place}{anchor})" if repository else words

    return _LEAVES.sub(out, markdown)


def _build_hook() -> ModuleType:
    """Return hatch_build.py, which knows the URL of the repository."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
