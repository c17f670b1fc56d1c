"""What the overlay kernel writes with: the glyph atlas and the label names, as arrays for the device."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

import numpy as np
import numpy.typing as npt

from zhcedge.core.errors import PipelineError

NAME_CHARACTERS = 24
"""Longest label drawn; NAME_CHARACTERS of kernels/overlay.cu."""

_FIRST, _COUNT = 32, 95  # printable ASCII


def load_atlas() -> npt.NDArray[np.uint8]:
    """The atlas, uint8 [95, glyph height, glyph width]: 0 is background, 255 ink; entry i is character 32 + i."""
    try:
        with (resources.files("zhcedge") / "data" / "glyphs.npy").open("rb") as stream:
            atlas: npt.NDArray[np.uint8] = np.load(stream, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise PipelineError("the glyphs are missing from the installation", fix="install zhcedge again") from error
    return atlas


def pack_names(labels: Sequence[str]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Label names as atlas indices, uint8 [labels, 24], and their lengths, uint8 [labels]. Others become "?"."""
    names = np.zeros((max(len(labels), 1), NAME_CHARACTERS), np.uint8)
    lengths = np.zeros(len(names), np.uint8)
    for row, label in enumerate(labels):
        codes = [_index(character) for character in label[:NAME_CHARACTERS]]
        names[row, : len(codes)] = codes
        lengths[row] = len(codes)
    return names, lengths


def _index(character: str) -> int:
    code = ord(character)
    return (code if _FIRST <= code < _FIRST + _COUNT else ord("?")) - _FIRST
