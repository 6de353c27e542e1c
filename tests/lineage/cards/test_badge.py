"""The badge of a report: wording, markup and safety."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import unicodedata
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import mdir_hf
from mdir_hf import HomologyReport, Verdict, make_badge
from mdir_hf.errors import InputError
from mdir_hf.lineage.cards.badge import (
    ADVANCES,
    FIRST_CHARACTER,
    LABEL_COLOR,
    MESSAGE_COLORS,
    RIM_COLOR,
    UNITS_PER_EM,
    Badge,
    escape,
    render_svg,
    text_width,
)
from mdir_hf.lineage.cards.claim import SCHEMA, claim_of_dict, claim_of_report
from mdir_hf.report import SettledBy
from mdir_hf.report.words import probability_text
from tests.lineage.cards.reports import BASE_COMMIT, HOSTILE_TEXTS, a_report, model
from tests.render.figures.drawn_reports import some_neurons

SVG = "{http://www.w3.org/2000/svg}"


def parsed(badge: Badge) -> ElementTree.Element:
    return ElementTree.fromstring(badge.svg)


@given(st.floats(max_value=-1e-9, min_value=-1e9))
def test_the_stated_bound_on_p_holds_and_is_the_next_power_of_ten(log10_p):
    text = unicodedata.normalize("NFKC", probability_text(log10_p).removeprefix("p ≤ ")).replace("−", "-")
    exponent = 0 if text == "1" else int(text.removeprefix("10"))
    assert exponent - 1 < log10_p <= exponent


def test_the_picture_holds_nothing_that_acts_or_loads():
    badge = make_badge(a_report())
    root = parsed(badge)
    assert {element.tag for element in root.iter()} == {
        f"{SVG}{name}" for name in ("svg", "title", "desc", "metadata", "path", "rect", "g", "text")
    }
    names = {name for element in root.iter() for name in element.attrib}
    assert not [name for name in names if "href" in name or name.startswith("on") or name in ("style", "src", "id")]
    assert "url(" not in badge.svg and badge.svg.count("http") == 1  # the namespace


def test_the_same_report_gives_the_same_bytes():
    svg = make_badge(a_report()).svg
    assert svg.isascii() and svg.endswith("</svg>\n")
    assert svg == make_badge(HomologyReport.from_json(a_report().to_json())).svg


def test_the_drawing_of_a_claim_is_stable():
    # Published badges are drawn again for verification, so a change of these bytes needs a new badge schema.
    claim = dataclasses.replace(claim_of_report(a_report()), report_sha256="c0" * 32)
    digest = hashlib.sha256(render_svg(claim).encode()).hexdigest()
    assert (SCHEMA, digest) == ("mdir-hf/badge/3", "cbe5092c4c6477d551282fdbb42479413b4459d61ce4184bdd098ed67b8a140c")


def test_text_fits_its_side():
    root = parsed(make_badge(a_report()))
    label, message = root.iter(f"{SVG}text")
    left = float(next(root.iter(f"{SVG}path")).get("d").split()[0].lstrip("M"))
    width = float(root.get("width"))
    for text, start, stop in ((label, 0, left), (message, left, width)):
        middle, half = float(text.get("x")), float(text.get("textLength")) / 2
        assert start + 5.5 <= middle - half and middle + half <= stop - 5.5


def luminance(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("color", [LABEL_COLOR, *MESSAGE_COLORS.values()])
def test_text_is_legible_on_every_color(color):
    assert contrast("#ffffff", color) >= 4.5  # WCAG AA


@pytest.mark.parametrize("page", ["#ffffff", "#0b0f19", "#0d1117"])
def test_the_rim_shows_on_light_and_dark_pages(page):
    assert contrast(RIM_COLOR, page) >= 3.0  # WCAG 1.4.11, non-text contrast


def test_the_endpoint_has_the_fields_that_shields_knows_and_no_more():
    body = json.loads(make_badge(a_report()).endpoint_json)
    assert body == {
        "schemaVersion": 1,
        "label": "shared weight ancestry",
        "message": "p ≤ 10⁻³⁰",
        "color": MESSAGE_COLORS[Verdict.HOMOLOGOUS].lstrip("#"),
    }


def links_and_images(markdown):
    html = MarkdownIt("commonmark").render(markdown)
    root = ElementTree.fromstring(f"<r>{html}</r>")
    return root, [a.get("href") for a in root.iter("a")], [(i.get("src"), i.get("alt")) for i in root.iter("img")]


@pytest.mark.parametrize(
    "url",
    [
        "a b.svg",
        "a)b.svg",
        "a(b",
        "a<b>",
        'a"b',
        "a'b",
        "a\\b",
        "a]b[",
        "a\nb",
        "a`b",
        "ä/漢.svg",
        "./x:y.svg",
        "a*b_c*",
    ],
)
def test_an_odd_url_stays_one_link(url):
    _, links, images = links_and_images(make_badge(a_report()).markdown(url, url))
    assert len(links) == len(images) == 1
    assert links[0] == images[0][0]


@pytest.mark.parametrize(
    "url",
    ["javascript:alert(1)", " javascript:alert(1)", "JaVaScRiPt:x", "data:text/html,x", "java\nscript:x", "", " "],
)
def test_only_web_addresses_and_paths_are_linked(url):
    with pytest.raises(InputError):
        make_badge(a_report()).markdown("badge.svg", url)
    with pytest.raises(InputError):
        make_badge(a_report()).markdown(url, "report.json")


@pytest.mark.parametrize("text", HOSTILE_TEXTS, ids=lambda text: ascii(text)[:30])
@pytest.mark.parametrize("commit", [BASE_COMMIT, None])
def test_an_invalid_repo_id_is_never_written(text, commit):
    badge = make_badge(a_report(reference=model(text, commit)))
    assert badge.claim.reference.repo is None
    everything = badge.svg + badge.endpoint_json + badge.markdown("b.svg", "r.json")
    parsed(badge)
    assert "a local folder and me/tuned@" in badge.svg
    for word in ("script", "onload", "evil", "passwd", "lineage:end", "\x1b", "\u202e", "xxx"):
        assert word not in everything


@pytest.mark.parametrize(
    "fields",
    [
        {"reference": model(commit="main")},
        {"reference": model(commit="A1" * 20)},
        {"reference": model(commit="<b>")},
        {"reference": model(revision="a b")},
        {"reference": model(revision="a\nb")},
        {"reference": model(revision="ä")},
        {"reference": model(revision="\x1b[31m")},
        {"log10_p": 1.0},
        {"log10_p": float("nan")},
        {"log10_p": float("-inf")},
        {"log10_p": -1e300},
        {"log10_p": "-30"},
        {"log10_p": False, "verdict": Verdict.NO_EVIDENCE},
        {"log10_p": 0.0},
        {"alpha": 0.0},
        {"alpha": "<b>"},
        {"level": "<b>"},
        {"seed": "0"},
        {"seed": True},
        {"version": "<b>"},
        {"version": "1\n2"},
    ],
    ids=str,
)
def test_a_report_of_something_else_is_refused_in_one_line(fields):
    with pytest.raises(InputError) as caught:
        make_badge(a_report(**fields))
    assert str(caught.value).isascii() and "\n" not in str(caught.value)


@given(st.text())
def test_any_text_is_escaped_for_element_and_attribute(text):
    root = ElementTree.fromstring(f'<r a="{escape(text)}">{escape(text)}</r>')
    allowed = "".join(c for c in text if c in "\t\n" or (ord(c) >= 0x20 and not 0x7F <= ord(c) <= 0x9F))
    allowed = "".join(c for c in allowed if not 0xD800 <= ord(c) <= 0xDFFF and ord(c) not in (0xFFFE, 0xFFFF))
    assert (root.text or "") == allowed
    assert not list(root) and escape(text).isascii()


def test_a_badge_cannot_be_changed_and_its_makers_are_public():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_badge(a_report()).svg = ""
    assert {"make_badge", "declared_lineage"} <= set(dir(mdir_hf))


def without_bound():
    """The claim of two models whose neurons were searched for."""
    neurons = some_neurons(step=SettledBy.KEYS, log10_p=None)
    return claim_of_report(a_report(settled_by=SettledBy.KEYS, log10_p=None, neurons=neurons))


def test_a_badge_counts_neurons_if_p_is_not_a_bound():
    claim = without_bound()
    assert claim.message == "63 of 64 tested neurons match"
    assert claim_of_dict(json.loads(json.dumps(claim.to_dict()))) == claim
    shown = render_svg(claim).partition("<metadata>")[0]
    assert "p &" not in shown and "No p is stated" in shown


def test_a_badge_states_the_step_that_settled_the_question():
    bound, searched = claim_of_report(a_report()), without_bound()
    assert (bound.settled_by, searched.settled_by) == ("near", "keys")
    assert "Settled by neurons of one or two layers at the same place." in bound.description
    assert "Settled by neurons searched for behind a map fitted on keys." in render_svg(searched)
    nothing = claim_of_report(a_report(verdict=Verdict.NO_EVIDENCE, log10_p=0.0, settled_by=None))
    assert nothing.settled_by is None and "Settled" not in nothing.description


@pytest.mark.parametrize(
    "changed",
    [
        {"agreement": 5},
        {"agreement": ""},
        {"agreement": "a\nb"},
        {"agreement": "x" * 301},
        {"log10_p": -30.0},  # p and an agreement in its place
        {"settled_by": None},
        {"settled_by": "screen"},
        {"verdict": "no_evidence"},
        {"channels": [64, 64]},  # a field of the first schema
    ],
    ids=str,
)
def test_claims_that_contradict_themselves_are_refused(changed):
    body = without_bound().to_dict()
    assert claim_of_dict(body).to_dict() == body
    with pytest.raises(InputError):
        claim_of_dict(body | changed)


# --- advance widths


def test_the_table_matches_the_typeface():
    matplotlib = pytest.importorskip("matplotlib")
    ttf = pytest.importorskip("fontTools.ttLib")
    with ttf.TTFont(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")) as font:
        glyphs, advances = font.getBestCmap(), font["hmtx"]
        assert font["head"].unitsPerEm == UNITS_PER_EM
        first = ord(FIRST_CHARACTER)
        assert tuple(advances[glyphs[code]][0] for code in range(first, 0x7F)) == ADVANCES


def test_characters_outside_the_table_are_at_least_as_wide_as_drawn():
    assert text_width("漢", 11) == text_width("\x01", 11) == 11
