"""Coefficients from video's YCbCr to JPEG's. Pure; the formulas are those of ITU-R BT.601-7, BT.709-6 and JFIF 1.02."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zhcedge.core.types import ColorMatrix

_LUMA_WEIGHTS = {ColorMatrix.BT601: (0.299, 0.114), ColorMatrix.BT709: (0.2126, 0.0722)}  # (Kr, Kb)


def ycbcr_from_rgb(matrix: ColorMatrix) -> npt.NDArray[np.float64]:
    """3x3: R, G, B of 0..1 to Y of 0..1 and Cb, Cr of -0.5..0.5."""
    kr, kb = _LUMA_WEIGHTS[matrix]
    luma = np.array([kr, 1 - kr - kb, kb])
    blue, red = np.array([0.0, 0.0, 1.0]), np.array([1.0, 0.0, 0.0])
    return np.stack([luma, (blue - luma) / (2 * (1 - kb)), (red - luma) / (2 * (1 - kr))])


def to_jpeg(matrix: ColorMatrix, is_full_range: bool) -> tuple[float, ...]:
    """black, then y_y, y_b, y_r, b_b, b_r, r_b, r_r, for bytes, chroma taken from 128.

    Y' = y_y (Y - black) + y_b Cb + y_r Cr;  Cb' = b_b Cb + b_r Cr;  Cr' = r_b Cb + r_r Cr. Grey stays grey, so
    luma does not enter into chroma.
    """
    between = ycbcr_from_rgb(ColorMatrix.BT601) @ np.linalg.inv(ycbcr_from_rgb(matrix))
    spans = (255.0, 255.0, 255.0) if is_full_range else (219.0, 224.0, 224.0)
    scaled = between * 255.0 / np.array(spans)
    black = 0.0 if is_full_range else 16.0
    return (black, *(float(value) for value in (*scaled[0], *scaled[1, 1:], *scaled[2, 1:])))
