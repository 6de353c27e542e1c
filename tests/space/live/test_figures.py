"""Figures that react to pointer, keys and touch, and can be saved."""

import re

import pytest
from playwright.sync_api import expect

from mdir_hf.render.figures.sheet import SMALL_SIZE
from tests.space.live.conftest import visitors
from tests.space.live.steps import focus, open_example, open_tab, overflow, settle
from tests.space.live.test_accessibility import PHONE, serious

LAYERS = "upscaled"
"""A stored result with a layer map of 30 by 44 layers."""


def opened(visit, **options):
    """The layer map of a stored result, on a new page."""
    page = visit(**options)
    open_example(page, LAYERS)
    settle(page)
    open_tab(page, "Layers")
    return page, page.locator('.answers[data-name="layers"]')


@pytest.fixture(scope="module")
def layers(chromium, server):
    """A layer map that several tests share; each leaves it zoomed out."""
    with visitors(chromium, server) as visit:
        yield opened(visit)


def point(page, cells, row, column, *, of):
    box = cells.bounding_box()
    n_rows, n_columns = of
    x = box["x"] + box["width"] * (column + 0.5) / n_columns
    page.mouse.move(x, box["y"] + box["height"] * (row + 0.5) / n_rows)


def test_the_pointer_shows_the_layers_and_p(layers):
    page, figure = layers
    cells, said = figure.locator(".cells"), figure.locator(".said")
    cells.scroll_into_view_if_needed()
    point(page, cells, 4, 4, of=(30, 44))
    expect(said).to_have_text(
        re.compile(r"^Layer 4 of \S+, layer 4 of \S+: log10 p -\d[\d,.]*; they match, log10 p -\d+")
    )
    point(page, cells, 2, 9, of=(30, 44))
    expect(said).to_have_text(re.compile(r"^Layer 2 of \S+, layer 9 of \S+: log10 p -?[\d.]+\.$"))
    expect(figure.locator(".mark")).to_be_visible()


def test_keys_move_between_cells(layers):
    page, figure = layers
    cells, said = figure.locator(".cells"), figure.locator(".said")
    focus(cells)
    for key in ("ArrowUp", "ArrowUp", "Home"):  # the pointer's test before this one may have left row 2 selected
        page.keyboard.press(key)
    expect(said).to_have_text(re.compile("^Layer 0 of .*layer 0 of"))
    page.keyboard.press("ArrowRight")
    expect(said).to_have_text(re.compile("^Layer 0 of .*layer 1 of"))
    expect(page.locator("#said")).to_have_text(said.inner_text())
    figure.get_by_role("button", name="Closer").click()
    assert serious(page) == []
    figure.get_by_role("button", name="Whole").click()


def asked(figure):
    """Return the two layers in the figure's text."""
    return [int(number) for number in re.findall(r"layer (\d+) of", figure.locator(".said").inner_text(), re.I)]


def test_closer_shows_a_part_and_the_labels_stay_and_are_legible(visit):
    page, figure = opened(visit, **PHONE)
    cells, sheet = figure.locator(".cells"), figure.locator(".sheet")
    before = sheet.bounding_box()
    box = cells.bounding_box()
    corner = {"x": box["width"] * 0.98, "y": box["height"] * 0.98}
    cells.tap(position=corner)
    assert asked(figure) == [29, 43]
    figure.get_by_role("button", name="Closer").click()
    after = sheet.bounding_box()
    assert (after["width"], after["height"]) == (before["width"], before["height"]) and overflow(page) == 0
    expect(figure.locator(".lens")).to_be_visible()
    expect(figure.locator(".part")).to_have_text("Enlarged: 14 to 29 down, 21 to 43 along.")
    assert_ticks_are_at_their_layers(figure)
    cells.tap(position={"x": box["width"] * 0.02, "y": box["height"] * 0.02})
    assert asked(figure) == [15, 22]  # the lower right quarter starts within layers 14 and 21
    focus(cells)
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert asked(figure) == [15, 1] and figure.locator(".mark").bounding_box()["x"] >= box["x"] - 1
    page.keyboard.press("0")
    expect(figure.locator(".lens")).to_be_hidden()
    expect(figure.locator(".ticks")).to_have_count(0)
    page.set_viewport_size({"width": 360, "height": 740})
    assert_text_is_legible(figure)
    assert overflow(page) == 0


def assert_text_is_legible(figure):
    shown = figure.locator(".sheet img:visible").first
    scale = shown.bounding_box()["width"] / int(shown.get_attribute("width"))
    assert scale * SMALL_SIZE * 96 / 72 >= 8.0  # pixels


def assert_ticks_are_at_their_layers(figure):
    """Check that a tap at each label of an enlarged part selects its layer."""
    box = figure.locator(".cells").bounding_box()
    for side, at in (("left", 0), ("bottom", 1)):
        ticks = figure.locator(f".ticks.{side} span").all()
        assert len(ticks) >= 4
        for tick in ticks:
            place = tick.bounding_box()
            x = place["x"] + place["width"] / 2 - box["x"] if side == "bottom" else 5
            y = place["y"] + place["height"] / 2 - box["y"] if side == "left" else 5
            figure.locator(".cells").tap(
                position={"x": max(1, min(box["width"] - 1, x)), "y": max(1, min(box["height"] - 1, y))}
            )
            assert str(asked(figure)[at]) == tick.inner_text()


def test_the_wheel_zooms_dragging_moves_and_the_picture_is_saved(layers):
    page, figure = layers
    cells = figure.locator(".cells")
    cells.scroll_into_view_if_needed()
    box = cells.bounding_box()
    x, y = box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.5
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    for _ in range(5):
        page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    expect(figure.locator(".lens")).to_be_visible()
    page.mouse.move(x + 1, y + 1)
    before = asked(figure)
    page.mouse.down()
    page.mouse.move(x - box["width"] * 0.3, y - box["height"] * 0.3, steps=4)
    page.mouse.up()
    page.mouse.move(x, y)
    assert all(now > then for now, then in zip(asked(figure), before, strict=True))
    figure.get_by_role("button", name="Whole").click()
    expect(figure.locator(".lens")).to_be_hidden()
    for kind, begins in (("SVG", b"<?xml"), ("PNG", b"\x89PNG")):
        with page.expect_download() as saved:
            figure.get_by_role("button", name=kind).click()
        assert saved.value.suggested_filename == f"layers.{kind.lower()}"
        content = saved.value.path().read_bytes()
        assert content.startswith(begins) and len(content) > 10_000, kind


def test_each_figure_has_one_hint_and_responds(visit):
    page, figure = opened(visit)
    expect(figure.locator(".said")).to_have_text("Point at a cell or tap it to read it.")
    flow = page.locator('.answers[data-name="flow"]')
    expect(flow.locator(".said")).to_have_text("Point at a layer or tap it to read it.")
    focus(flow.locator(".cells"))
    page.keyboard.press("ArrowDown")
    expect(flow.locator(".said")).to_have_text(re.compile("^Layer 1 of .*: matches layer 1 of"))
    open_tab(page, "Modules")
    strip = page.locator('.answers[data-name="drift"]')
    focus(strip.locator(".cells").first)
    expect(strip.locator(".said")).to_have_text(re.compile("^Query, layer 0 of .*: kept, mean cosine 1.000"))

    open_example(page, "fine-tune")
    expect(page.locator("#verdict-words")).to_contain_text("fine-tuned")
    settle(page)
    open_tab(page, "Evidence")
    assert page.locator('.answers[data-name="flow"]').count() == 0  # the layers were not described
    neurons = page.locator('.answers[data-name="neurons"]')
    focus(neurons.locator(".cells"))
    expect(neurons.locator(".said")).to_have_text(
        re.compile(r"^Layer \d+ of .*: 64 of 64 neurons are copies; the two ")
    )
    factor = page.locator('.answers[data-name="embedding"]')
    focus(factor.locator(".cells"))
    expect(factor.locator(".said")).to_have_text(
        re.compile("^Channels 0 to .* of .*: largest entry [01].*channel 0 matches channel 0")
    )
