"""The section between its markers is recognised as Markdown does and replaced as a whole."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from mdir_hf import make_badge
from mdir_hf.errors import CardError
from mdir_hf.lineage.cards.section import BEGIN, END, lineage_section, replace_section
from mdir_hf.names import visible_text
from mdir_hf.render.projection_words import UNCONFIRMED_WORDS
from mdir_hf.render.text import plain
from mdir_hf.report import LayerPair, SettledBy, unconfirmed
from tests.lineage.cards.reports import HOSTILE_TEXTS, a_report
from tests.render.figures.drawn_reports import a_table, some_neurons

SECTION = f"{BEGIN}\nnew\n{END}\n"
OLD = f"{BEGIN}\nold\n{END}\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("", SECTION),
        ("# T\n", f"# T\n\n{SECTION}"),
        ("# T\n\n", f"# T\n\n{SECTION}"),
        ("# T\n\n\n", f"# T\n\n\n{SECTION}"),
        ("# T", f"# T\n\n{SECTION}"),
        ("# T\r\n", f"# T\r\n\r\n{SECTION}".replace("\n", "\r\n").replace("\r\r", "\r")),
        ("# T\r\n\r\n", f"# T\r\n\r\n{SECTION}".replace("\n", "\r\n").replace("\r\r", "\r")),
        (OLD, SECTION),
        (f"a\n{OLD}b\n", f"a\n{SECTION}b\n"),
        (f"a\n{OLD}".rstrip("\n"), f"a\n{SECTION}".rstrip("\n")),
        (f"a\r\n{OLD}b".replace("\r", "").replace("\n", "\r\n"), f"a\n{SECTION}b".replace("\n", "\r\n")),
        # Markers inside a line, without a partner or in code are text.
        (f"see {BEGIN}\n{END}\n", f"see {BEGIN}\n{END}\n\n{SECTION}"),
        (f"{BEGIN}\n", f"{BEGIN}\n\n{SECTION}"),
        (f"{END}\n{BEGIN}\n", f"{END}\n{BEGIN}\n\n{SECTION}"),
        (f"{BEGIN}\n{OLD}", f"{BEGIN}\n{SECTION}"),
        (f"```\n{OLD}```\n", f"```\n{OLD}```\n\n{SECTION}"),
        (f"~~~md\n```\n{OLD}~~~\n{OLD}", f"~~~md\n```\n{OLD}~~~\n{SECTION}"),
        (f"````\n```\n{OLD}````\n{OLD}", f"````\n```\n{OLD}````\n{SECTION}"),
        (f"  {BEGIN}\n  {END}\n", f"  {BEGIN}\n  {END}\n\n{SECTION}"),
        # A code block in a list item ends with the item, even without a closing fence.
        (f"- ```\n  code\n  ```\n\n{OLD}", f"- ```\n  code\n  ```\n\n{SECTION}"),
        (f"1. ```\n   code\n\n{OLD}", f"1. ```\n   code\n\n{SECTION}"),
        (f"> ```\n> code\n\n{OLD}", f"> ```\n> code\n\n{SECTION}"),
        (f"```code``` in a line\n{OLD}", f"```code``` in a line\n{SECTION}"),
    ],
)
def test_the_section_replaces_the_earlier_one_or_is_appended(body, expected):
    assert replace_section(body, SECTION) == expected


@given(
    st.lists(st.sampled_from(["# T", "", "```", "~~~", "- ```", "  ```", "> ```", "    ```", BEGIN, END, "text", OLD]))
)
@settings(deadline=None)
def test_a_second_replacement_changes_nothing(pieces):
    try:
        once = replace_section("\n".join(pieces), SECTION)
    except CardError:
        return
    assert once.count("new") == 1
    assert replace_section(once, SECTION) == once


def test_two_sections_are_left_to_the_author():
    with pytest.raises(CardError, match="2 lineage sections"):
        replace_section(f"{OLD}\n{OLD}", SECTION)


def test_an_unclosed_code_block_is_refused():
    with pytest.raises(CardError, match="code block"):
        replace_section("```\ncode\n", SECTION)


_PIECES = [
    *("```", "````", "~~~", "``` bash", "```x`", "  ```", "   ~~~", "    ```", "- ```", "* ~~~", "1. ```", "> ```"),
    *("> - ```", "- > ```", "- - ```", "  - ```", "-   ```", "\t```", "  text", "   text", "- item", "> quote", "text"),
    *("", "", "# head", "---", "2. two", "10) ten", "<!-- x", "x -->", "<details>", "<pre>", "</pre>", "<b>", BEGIN),
]


@settings(deadline=None, max_examples=400)
@given(st.lists(st.sampled_from([*_PIECES, OLD]), max_size=8), st.sampled_from(["\n", "\r\n", "\r"]))
def test_a_reader_of_the_card_never_sees_it_as_code(lines, end):
    """The section renders as HTML and text, and the rest of the card is unchanged."""
    body = "\n".join(lines).replace("\n", end)
    try:
        after = replace_section(body, SECTION)
    except CardError:
        return
    written = SECTION.replace("\n", end if end in body else "\n").rstrip()
    assert after.count(written) == 1
    head, tail = after.split(written)
    assert body.startswith(head.rstrip("\r\n")) and body.endswith(tail.lstrip("\r\n"))
    page = MarkdownIt("commonmark").render(after).replace("<p>new</p>", "new")
    assert page.count(f"{BEGIN}\nnew\n{END}") == 1  # in code, its markers would be escaped to &lt;


@given(st.text() | st.sampled_from([text for text in HOSTILE_TEXTS if isinstance(text, str)]))
@settings(deadline=None)
def test_any_text_in_the_section_stays_text(text):
    (token,) = [t for t in MarkdownIt("commonmark").enable("table").parse(f"x {plain(text)} x") if t.children]
    assert {child.type for child in token.children} <= {"text", "text_special"}
    written = "".join(child.content for child in token.children)
    assert written.split() == ["x", *visible_text(text).split(), "x"]


def test_the_section_uses_no_links_of_the_card():
    text = f"x {plain('see [here] and ![there]')}\n\n[here]: https://evil.example\n[there]: https://evil.example\n"
    assert "evil" not in MarkdownIt("commonmark").render(text)


def section(report):
    badge = make_badge(report)
    return lineage_section(
        badge, report, repo="me/tuned", related_model=badge.claim.reference, endpoint="https://huggingface.co"
    )


def test_the_section_states_reading_options_as_text():
    candidate = dataclasses.replace(a_report().candidate, file="<b>_x_|.gguf", tokenizer=f"me/words@{'c' * 40}")
    text = section(a_report(candidate=candidate))
    row = next(line for line in text.splitlines() if line.startswith("| me/tuned |"))
    cells = [token for token in MarkdownIt("commonmark").enable("table").parse(text) if token.type == "inline"]
    (cell,) = [token for token in cells if "vocabulary" in token.content]
    assert row.count(" | ") == 1 and "html_inline" not in {child.type for child in cell.children}
    shown = "".join(child.content for child in cell.children)
    assert shown.endswith(f" (file <b>_x_|.gguf, vocabulary of me/words@{'c' * 40})")


def test_p_is_not_shown_if_it_is_not_a_bound():
    neurons = some_neurons(step=SettledBy.KEYS, log10_p=None)
    report = a_report(settled_by=SettledBy.KEYS, log10_p=None, neurons=neurons)
    text = section(report)
    agreement = "63 of 64 tested neurons match"
    assert f"share weights ({agreement}).**" in text
    assert report.what_p_says in text and "p ≤" not in text


@pytest.mark.parametrize("text", [text for text in HOSTILE_TEXTS if isinstance(text, str)], ids=lambda t: ascii(t)[:30])
def test_a_hostile_caveat_stays_one_line_of_text(text):
    honest = MarkdownIt("commonmark").enable("table").parse(section(a_report(caveats=("x",))))
    tokens = MarkdownIt("commonmark").enable("table").parse(section(a_report(caveats=(f"x{text}",))))
    assert [token.type for token in tokens] == [token.type for token in honest]
    kinds = [child.type for token in tokens for child in token.children or ()]
    assert (kinds.count("link_open"), kinds.count("image"), kinds.count("html_inline")) == (3, 1, 0)
    assert section(a_report(caveats=(text,))).count(END) == 1


def section_of(report):
    badge = make_badge(report)
    return lineage_section(
        badge, report, repo="me/tuned", related_model=badge.claim.reference, endpoint="https://hub.example"
    )


def test_the_layers_stand_in_a_short_table():
    lines = section_of(a_report(projections=a_table())).splitlines()
    at = lines.index("| layers | query | key | value | MLP gate | MLP down |")
    assert lines[at + 1] == "|---|---|---|---|---|---|"
    assert [line.replace("\\", "") for line in lines[at + 2 : at + 6]] == [
        "| layer 0 | kept, 0.98 | kept, 0.98 | kept, 0.98 | kept, 0.98 | kept, 0.98 |",
        "| layer 1 | kept, 0.98 | from layer 2, 0.98 | replaced, 0.01 | kept, 0.98 | kept, 0.98 |",
        "| layer 2 | kept, 0.98 | kept, 0.98 | kept, 0.98 | kept in part (50%), 0.50 | not compared |",
        "",
    ]
    assert lines[at - 2].startswith("Sampled rows of all 3 layers agree, mean cosine 0.9")


def test_layers_with_the_same_changes_share_a_row():
    table = a_table()
    kept = [result for result in table.results if result.layer.candidate == 0]
    alike = tuple(dataclasses.replace(result, layer=LayerPair(at, at)) for at in (0, 1, 2, 7) for result in kept)
    lines = section_of(a_report(projections=a_table(results=alike))).splitlines()
    assert sum(line.startswith("| layers 0 to 2 and 7 | kept, 0.98 |") for line in lines) == 1


def test_an_unconfirmed_table_says_so_in_the_card():
    section = section_of(a_report(projections=unconfirmed(a_table())))
    assert UNCONFIRMED_WORDS in section
    assert "kept" not in section and "rows agree" in section


def test_a_card_without_a_table_does_not_mention_layers():
    assert "| layers |" not in section_of(a_report())
