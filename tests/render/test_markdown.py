"""The Markdown form, rendered: names are text, never links, images or markup."""

import pytest

from mdir_hf.names import shown_name
from mdir_hf.render.text import fenced, markdown_text, plain
from tests.render.figures.drawn_reports import HOSTILE_NAMES, a_model, a_report

markdown_it = pytest.importorskip("markdown_it")


def rendered(text):
    """Return token types and contents, with the recognised raw HTML and bare URLs."""
    return markdown_it.MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)


def kinds(text):
    found = []
    for token in rendered(text):
        found.append(token.type)
        found += [child.type for child in token.children or ()]
    return found


def shown(text):
    """Return the visible text of a paragraph."""
    (inline,) = [token for token in rendered(text) if token.type == "inline"]
    assert {child.type for child in inline.children} <= {"text", "text_special"}
    return "".join(child.content for child in inline.children)


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_name_does_not_change_the_structure(name):
    def text_of(reference, candidate):
        report = a_report(reference=a_model(reference), candidate=a_model(candidate), caveats=(f"About {reference}.",))
        return markdown_text(report, {"neurons": f"Map of {reference}", "layers": "A map"})

    with_name = kinds(text_of(name, name[::-1]))
    ignored = {"text", "text_special"}
    assert [kind for kind in with_name if kind not in ignored] == [
        kind for kind in kinds(text_of("owner/base", "me/tuned")) if kind not in ignored
    ]
    assert "html_block" not in with_name and "html_inline" not in with_name and "link_open" not in with_name
    assert with_name.count("image") == 2
    # The table of models has the whole name in one cell.
    cells = ["".join(c.content for c in t.children) for t in rendered(text_of(name, "x")) if t.type == "inline"]
    assert shown_name(name, length=80) in cells


@pytest.mark.parametrize("text", ["`", "```", "a ```` b", "no ticks"])
def test_text_cannot_close_a_code_block(text):
    tokens = rendered(fenced("sh", f"{text}\n# still inside"))

    assert [(token.type, token.content) for token in tokens] == [("fence", f"{text}\n# still inside\n")]


def test_addresses_do_not_become_links():
    assert plain("https://x.example www.x.example a@b") == r"https\://x.example www&#46;x.example a&#64;b"
