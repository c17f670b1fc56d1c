"""The glyph atlas has a picture for every printable character and a stand-in for all others."""

from __future__ import annotations

import numpy as np

from zhcedge.backends.cpu.glyphs import FIRST_CHARACTER, GLYPH_COUNT, glyph_indices, load_atlas


def test_every_character_but_space_has_ink_of_its_own() -> None:
    atlas = load_atlas()
    assert atlas.dtype == np.uint8
    assert atlas.shape[0] == GLYPH_COUNT
    assert not atlas[0].any()
    assert len({glyph.tobytes() for glyph in atlas}) == GLYPH_COUNT


def test_text_maps_to_its_glyphs_and_strange_characters_to_a_question_mark() -> None:
    assert (glyph_indices("Az ~") + FIRST_CHARACTER).tobytes() == b"Az ~"
    assert (glyph_indices("é\n\x7f犬") + FIRST_CHARACTER).tobytes() == b"????"
    assert glyph_indices("").shape == (0,)
