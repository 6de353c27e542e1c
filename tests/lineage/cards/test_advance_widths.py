from pathlib import Path

import pytest

from mdir_hf.lineage.cards.badge import ADVANCES, FIRST_CHARACTER, UNITS_PER_EM, text_width


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
