"""Video's YCbCr to JPEG's, against the way through RGB."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.backends.cuda.nvjpeg.color import to_jpeg, ycbcr_from_rgb
from zhcedge.core.types import ColorMatrix

UNIT = st.floats(0, 1, width=32)


def as_bytes(rgb: tuple[float, float, float], matrix: ColorMatrix, is_full_range: bool) -> np.ndarray:
    """R, G, B of 0..1 as the values that a stream carries, unrounded."""
    luma, blue, red = ycbcr_from_rgb(matrix) @ np.array(rgb)
    if is_full_range:
        return np.array([255 * luma, 255 * blue + 128, 255 * red + 128])
    return np.array([219 * luma + 16, 224 * blue + 128, 224 * red + 128])


@given(rgb=st.tuples(UNIT, UNIT, UNIT), matrix=st.sampled_from(ColorMatrix), is_full_range=st.booleans())
def test_a_colour_stays_that_colour(rgb: tuple[float, float, float], matrix: ColorMatrix, is_full_range: bool) -> None:
    y, b, r = as_bytes(rgb, matrix, is_full_range) - np.array([0, 128, 128])
    black, y_y, y_b, y_r, b_b, b_r, r_b, r_r = to_jpeg(matrix, is_full_range)
    got = [y_y * (y - black) + y_b * b + y_r * r, b_b * b + b_r * r + 128, r_b * b + r_r * r + 128]
    assert got == pytest.approx(as_bytes(rgb, ColorMatrix.BT601, True).tolist(), abs=1e-3)


def test_known_values() -> None:
    red = as_bytes((1, 0, 0), ColorMatrix.BT601, False)
    assert red == pytest.approx([81.48, 90.2, 240], abs=0.02)  # BT.601 red in video is (81, 90, 240)
    assert to_jpeg(ColorMatrix.BT601, True) == pytest.approx((0, 1, 0, 0, 1, 0, 0, 1))
