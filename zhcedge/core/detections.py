"""One frame's detections as the JSON object that `detect --json` and the jsonl sink write, one a line."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from zhcedge.core.printing import utf8_text


def frame_line(
    source: str,
    frame: int,
    time_s: float,
    size: tuple[int, int],
    results: npt.NDArray[np.void],
    labels: Sequence[str],
) -> str:
    """JSON without a line end: source, frame, time_s, width, height, detections: [{label, score, box}].

    Boxes are x1, y1, x2, y2 in pixels of the source, to 0.01; scores to 0.0001; the best score comes first.

    Args:
        source: bytes of a file's name that are not UTF-8 become %XX.
        frame: number in the source, from 0.
        time_s: presentation time; below 0 means unknown and becomes null.
        size: width and height of the source's picture in pixels.
        results: RESULT_DTYPE, shape [1].
        labels: class names by index.
    """
    found = results[0]["detections"][: int(results[0]["count"])]
    detections = [
        {
            "label": labels[label],
            "score": round(score, 4),
            "box": [round(edge, 2) for edge in box],
        }
        for box, score, label in zip(
            found["box"].tolist(), found["score"].tolist(), found["label"].tolist(), strict=True
        )
    ]
    return json.dumps(
        {
            "source": utf8_text(source),
            "frame": frame,
            "time_s": round(time_s, 6) if time_s >= 0 else None,
            "width": size[0],
            "height": size[1],
            "detections": detections,
        },
        ensure_ascii=False,
    )
