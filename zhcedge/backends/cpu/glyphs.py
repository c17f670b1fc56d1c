"""The glyph atlas that labels are drawn from: printable ASCII, fixed width, 8-bit coverage.

Rendered from DejaVu Sans Mono Bold by tools/make-glyphs and shipped as zhcedge/data/glyphs.npy.
"""

from __future__ import annotations

import io
from importlib import resources

import numpy as np
import numpy.typing as npt

FIRST_CHARACTER = 32
GLYPH_COUNT = 95


def load_atlas() -> npt.NDArray[np.uint8]:
    """The atlas, uint8 [95, glyph height, glyph width] in host memory: 0 is background, 255 is ink.

    Entry i is the character 32 + i. Called at initialisation (it reads a file); the array is the caller's own.
    """
    data = (resources.files("zhcedge") / "data" / "glyphs.npy").read_bytes()
    atlas: npt.NDArray[np.uint8] = np.load(io.BytesIO(data), allow_pickle=False)
    return atlas


def glyph_indices(text: str) -> npt.NDArray[np.uint8]:
    """Atlas indices of `text`, uint8 [len(text)]; a character outside printable ASCII becomes "?"."""
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8)
    is_printable = (codes >= FIRST_CHARACTER) & (codes < FIRST_CHARACTER + GLYPH_COUNT)
    indices: npt.NDArray[np.uint8] = np.where(is_printable, codes, np.uint8(ord("?"))) - np.uint8(FIRST_CHARACTER)
    return indices
