"""The site matches the program: words of a report, errors, public names, stored reports."""

import importlib
import inspect
import os
import re
from pathlib import Path

import pytest

import mdir_hf
from docs.roles import without_roles
from docs.site_hooks import command_line_page, lists_apart, schema_page, start_page, table_page
from mdir_hf import HomologyReport, errors
from mdir_hf.cli.main import build_parser
from mdir_hf.comparison import steps
from mdir_hf.comparison.run import BEHIND_AGREEMENT, BY_NEURONS
from mdir_hf.render import description, layer_words, projection_words
from mdir_hf.render.description import describe
from mdir_hf.report.terms import (
    LayerPattern,
    ModuleRole,
    Reason,
    SettledBy,
    Transformation,
)
from mdir_hf.report.words import REASON_TEXT, n_bytes_text, range_text

DOCS = Path(__file__).parents[2] / "docs"
REPORTS = [*DOCS.glob("reports/*.json"), *DOCS.parent.glob("space/examples/*[!x].json")]
COMMON_WORDS = {"", "used", "seconds", "what", "file", "smallest", "largest", "without", "best", "one", "model"}
READ_A_RESULT = (DOCS / "read-a-result.md").read_text(encoding="utf-8")
EVERY_LINE = (DOCS / "reference" / "report.md").read_text(encoding="utf-8")


def stored(name):
    return HomologyReport.from_json((DOCS / "reports" / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("page", "names"),
    [("read-a-result.md", ("fine-tune", "rotated", "strangers")), ("../README.md", ("fine-tune",))],
)
def test_a_page_prints_the_stored_report(page, names):
    blocks = re.findall(r"```text\n(.*?)\n```", (DOCS / page).read_text(encoding="utf-8"), re.S)
    assert set(map(str, map(stored, names))) == set(blocks)


def test_the_page_on_every_line_prints_a_stored_report_and_parts_of_it():
    blocks = re.findall(r"```text\n(.*?)\n```", EVERY_LINE, re.S)
    assert stored("rotated").details in blocks
    reports = "\n".join(stored(name).details for name in ("fine-tune", "permuted", "rotated", "strangers"))
    for block in blocks:
        assert block in reports or block.startswith("plan: ")


def test_the_plan_on_the_page_matches_the_stored_report_and_names_every_step():
    (shown,) = re.findall(r"```text\n(plan: .*?)\n```", EVERY_LINE, re.S)
    io = stored("strangers").io
    planned = range_text(*map(n_bytes_text, io.bytes_planned))
    assert shown.startswith(f"plan: {planned} of {n_bytes_text(io.bytes_of_weights)} of weights; peak memory about ")
    named = re.findall(r"([a-z]+) [\d.]+ [kM]B", shown.partition("settled: ")[2])
    # These two models have neither experts nor other stacks. All searches share one limit.
    assert set(named) == {name for name, _ in BY_NEURONS} - {"parts"} | {"searches", "embeddings"}


def test_every_line_that_a_report_prints_is_explained():
    source = "".join(map(inspect.getsource, (description, layer_words, projection_words)))
    labels = set(re.findall(r'Line\(\s*"([^"]+)"', source)) | {"embedding", "unembedding"}
    assert {"warning", "excludes", "neurons", "layers", "projections"} <= labels
    for label in labels:
        assert re.search(rf"^###? .*\b{label}\b|`{label}`|\*\*{label}\*\*", EVERY_LINE, re.M), label


@pytest.mark.parametrize("words", [SettledBy, LayerPattern, ModuleRole], ids=lambda one: one.__name__)
def test_every_word_that_a_line_may_hold_is_explained(words):
    for word in words:
        shown = word.words if words in (SettledBy, LayerPattern) else word.value.replace("_", " ")
        assert f"`{shown}`" in EVERY_LINE or f"`{word.value}`" in EVERY_LINE, word


def test_every_transformation_is_explained():
    for word in Transformation:
        assert f"`{description.FOUND[word]}`" in EVERY_LINE, word


def test_every_reason_of_inconclusive_has_its_section():
    section = READ_A_RESULT.split("## Every reason of `inconclusive`", 1)[1].split("\n## ", 1)[0]
    parts = dict(re.findall(r"^### `(\w+)`\n\n> (.+)$", section, re.M))
    assert parts == {reason.value: REASON_TEXT[reason] for reason in Reason}


def test_every_error_has_a_row_with_a_next_step():
    rows = re.findall(
        r"^\| `(\w+)`[^|]*\| [^|]+ \| [^|]+ \|$", (DOCS / "reference" / "errors.md").read_text(encoding="utf-8"), re.M
    )
    known = [name for name, one in vars(errors).items() if isinstance(one, type) and one.__module__ == errors.__name__]
    assert sorted(rows) == sorted(known)


def test_every_public_name_is_on_the_page_on_python():
    named = re.findall(r"^::: (\S+)$", (DOCS / "reference" / "python.md").read_text(encoding="utf-8"), re.M)
    assert sorted(name.rpartition(".")[2] for name in named) == sorted(set(dir(mdir_hf)) - {"__version__"})
    for name in named:
        module, _, public = name.rpartition(".")
        assert getattr(importlib.import_module(module), public) is getattr(mdir_hf, public)


def test_the_first_page_is_the_readme_with_links_that_start_in_docs():
    readme, start = (DOCS.parent / "README.md").read_text(encoding="utf-8"), start_page()
    assert re.sub(r"\(.*?\)|<img.*?>", "", start) == re.sub(r"\(.*?\)|<img.*?>", "", readme)
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)|src=\"([^\"]+)", start)
    places = [place for found in links for place in found if place]
    assert len(places) > 15
    for place in places:
        assert place == "changes.md" or (DOCS / place).resolve().exists(), place


def test_tables_link_to_pages_and_pictures_of_the_site():
    pages = sorted((DOCS.parent / "benchmarks" / "results" / "pages").glob("*.md"))
    assert len(pages) > 10
    for page in pages:
        for place in re.findall(r"\]\((?!https?://|#)([^)#]+)", table_page(page)):
            picture = place.removeprefix("../images/results/")
            source = page.parent.parent / picture if picture != place else (DOCS / "evidence" / place)
            assert Path(os.path.normpath(source)).exists() or (page.parent / place).exists(), (page.name, place)


def test_every_command_answers_a_question():
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    for name in build_parser()._subparsers._group_actions[0].choices:
        assert re.search(rf"`(mdir-hf )?{name}\b", page), name
    assert len(page.splitlines()) < 40  # one screen


def test_the_page_on_the_command_line_has_every_option():
    page = command_line_page()
    for command in build_parser()._subparsers._group_actions[0].choices.values():
        for action in command._actions:
            for option in action.option_strings if action.help != "==SUPPRESS==" else ():
                assert option in ("-h", "--help") or re.search(rf"[`, ]{option}[`, ]", page), option


def test_the_page_on_json_says_what_the_fields_mean():
    page = schema_page()
    assert "| `log10_p` | number or null | log10 of a bound on the probability" in page
    empty = [row for row in page.splitlines() if re.fullmatch(r"\| `\w+` \|.*\|\s+\|", row)]
    assert len(empty) <= 9, empty  # parts of one sentence above their table


def test_the_architecture_page_names_files_that_exist():
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", page))
    assert len(named) > 12
    places = (Path(mdir_hf.__file__).parent, DOCS.parent)
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_the_glossary_has_every_label_that_a_report_prints():
    glossary = (DOCS / "glossary.md").read_text(encoding="utf-8").lower()
    told = (describe(HomologyReport.from_json(path.read_text(encoding="utf-8"))) for path in REPORTS)
    labels = set()
    for section in (section for sections in told for section in sections):
        labels |= {line.label for line in section.brief} | {fact.name for fact in section.facts}
        tables = [table for table in section.tables if not table.caption.startswith(("Files read", "Which layer"))]
        labels |= {
            cell
            for table in tables
            for cell in (*table.columns, *(row[0] for row in table.rows if not row[0].isdecimal()))
        }
    words = {word.strip("(),") for label in labels for word in label.lower().split()}
    assert sorted(word for word in words - COMMON_WORDS if word not in glossary) == []


def test_lists_get_the_blank_line_that_they_need_and_code_stays():
    assert lists_apart("so:\n- a\n  b\n- c") == "so:\n\n- a\n  b\n- c"
    assert lists_apart("```\na\n- b\n```") == "```\na\n- b\n```"
    assert without_roles("see :class:`~a.b.C` and :func:`d`") == "see ``C`` and ``d``"


def test_the_site_loads_nothing_from_elsewhere():
    config = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    assert "http" not in config and "font: false" in config
    # With --quiet, mkdocs counts no warnings, so strict has no effect.
    assert "strict: true" in config and "mkdocs build\n" in (DOCS.parent / "Makefile").read_text(encoding="utf-8")
    for sheet in (DOCS / "assets").rglob("*.css"):
        for address in re.findall(r"url\(([^)]+\.woff2)\)", sheet.read_text(encoding="utf-8")):
            assert (sheet.parent / address).exists()


def test_the_page_on_architecture_lists_the_steps_of_a_comparison_in_their_order():
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    table = page[page.index("| step | function in `steps.py`") :].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    listed = [
        (name, function) for row in rows for name, function in zip(row[0].split(", "), row[1].split(", "), strict=True)
    ]
    behind = [(name, step) for name, _, step in BEHIND_AGREEMENT]
    run = [("files", steps.compare_files), *BY_NEURONS, ("embeddings", steps.look_at_embeddings), *behind]
    assert listed == [(name, f"`{step.__name__}`") for name, step in run]
