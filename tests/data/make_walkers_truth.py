#!/usr/bin/env python3
"""Makes walkers_truth.json: who is where in the first 100 frames of walkers.mp4 (walkers_truth.README.md says how).

usage: zhc-edge detect clip:walkers --score 0.2 --frames 100 --json found.jsonl
       tests/data/make_walkers_truth.py found.jsonl > tests/data/walkers_truth.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

FRAMES = 100
SNAP_IOU = 0.55
"""A detector's box that overlaps the drawn one by this much is the same person's, and is nearer to the outline."""

Numbers = npt.NDArray[np.float64]
Key = tuple[int, int, int, int, int]  # frame, x1, y1, x2, y2

# The boxes that were looked at, by person; between two of them a person moves evenly.
PEOPLE: dict[str, tuple[str, list[Key]]] = {
    "A": (
        "brown leather jacket, black trousers; from the left to the lamp post, stands behind its sign from frame 43 on",
        [
            (0, 253, 221, 282, 309), (4, 280, 211, 314, 300), (8, 302, 208, 332, 295), (12, 321, 209, 359, 292),
            (16, 346, 199, 377, 285), (20, 362, 193, 396, 276), (24, 371, 186, 403, 270), (27, 375, 186, 403, 266),
            (28, 377, 186, 401, 264), (30, 378, 186, 404, 263), (31, 383, 184, 408, 263), (33, 388, 184, 410, 263),
            (34, 389, 183, 411, 262), (35, 394, 183, 410, 261), (36, 392, 182, 417, 260), (38, 390, 182, 418, 262),
            (40, 396, 184, 419, 261), (42, 400, 183, 424, 261), (44, 406, 184, 429, 262), (49, 405, 182, 429, 260),
            (53, 407, 182, 430, 263), (60, 405, 183, 426, 262), (67, 408, 182, 432, 260), (73, 410, 182, 434, 263),
            (82, 410, 183, 429, 263), (88, 407, 183, 426, 262), (92, 411, 182, 428, 262), (95, 418, 182, 435, 261),
            (97, 420, 181, 439, 258), (99, 420, 180, 449, 258),
        ],
    ),
    "B": (
        "dark jacket, blue jeans; from the top, behind the lamp post at 18 to 22, behind A at 26 to 33, then left of A",
        [
            (0, 501, 156, 529, 232), (3, 495, 160, 523, 236), (6, 484, 165, 514, 239), (9, 473, 165, 504, 240),
            (12, 462, 170, 488, 248), (15, 442, 174, 477, 250), (17, 433, 175, 458, 250),
            (18, 426, 177, 455, 250), (19, 420, 176, 447, 250), (20, 411, 174, 432, 252),
            (22, 401, 175, 424, 251), (24, 391, 176, 418, 252), (26, 390, 176, 414, 254),
            (28, 388, 178, 411, 257), (30, 384, 180, 410, 259), (31, 385, 180, 408, 260), (32, 379, 180, 400, 261),
            (34, 380, 181, 400, 262), (36, 375, 182, 401, 259), (40, 376, 182, 402, 257), (43, 379, 181, 404, 258),
            (45, 377, 180, 405, 258), (48, 373, 180, 402, 256), (52, 374, 180, 400, 255), (56, 375, 179, 400, 255),
            (57, 379, 179, 401, 256), (58, 378, 180, 400, 257), (60, 381, 180, 404, 259), (63, 375, 183, 401, 258),
            (66, 371, 182, 404, 258), (70, 371, 179, 402, 258), (75, 371, 179, 402, 259), (80, 372, 180, 402, 259),
            (85, 374, 181, 402, 257), (90, 373, 180, 406, 258), (95, 380, 180, 415, 258), (99, 378, 179, 410, 256),
        ],
    ),
    "C": (
        "all in black; from the right past the lamp post (23 to 39), behind A and B (52 to 59), to the left and back",
        [
            (0, 640, 238, 685, 324), (4, 601, 238, 647, 325), (8, 574, 237, 605, 324), (12, 531, 238, 565, 325),
            (16, 482, 237, 524, 323), (20, 439, 233, 481, 315), (22, 432, 232, 459, 314), (23, 413, 226, 451, 308),
            (24, 416, 225, 445, 308), (25, 414, 221, 442, 304), (26, 409, 220, 437, 303), (27, 405, 220, 436, 303),
            (28, 402, 218, 426, 300), (29, 404, 215, 428, 297), (30, 404, 212, 428, 294), (31, 408, 210, 429, 291),
            (33, 411, 207, 430, 288), (34, 409, 203, 429, 283), (35, 413, 202, 431, 282), (36, 415, 199, 446, 279),
            (37, 420, 197, 447, 276), (38, 434, 196, 451, 271), (39, 438, 193, 457, 271), (40, 436, 188, 461, 269),
            (43, 442, 186, 469, 259), (46, 443, 181, 473, 253), (49, 439, 180, 466, 249), (50, 433, 177, 458, 248),
            (51, 431, 176, 457, 246), (52, 429, 176, 454, 244), (53, 422, 176, 440, 244), (54, 412, 172, 429, 242),
            (55, 406, 174, 426, 242), (56, 401, 173, 422, 239), (57, 391, 170, 411, 240), (58, 377, 171, 403, 235),
            (59, 369, 172, 392, 236), (60, 364, 172, 386, 239), (62, 348, 172, 376, 240), (64, 334, 170, 357, 237),
            (67, 316, 171, 343, 236), (70, 291, 171, 327, 236), (74, 268, 172, 301, 237), (78, 259, 173, 286, 240),
            (82, 262, 176, 290, 247), (86, 271, 184, 304, 253), (90, 290, 189, 319, 258), (94, 307, 193, 339, 267),
            (97, 328, 198, 359, 269), (99, 343, 200, 371, 273),
        ],
    ),
    "D": (
        "red and blue jacket, white bag; from the right edge to the top",
        [
            (10, 748, 302, 768, 408), (11, 746, 298, 768, 412), (13, 724, 291, 768, 406), (15, 718, 285, 765, 398),
            (20, 686, 271, 726, 378), (25, 661, 261, 696, 366), (30, 628, 252, 667, 352), (35, 605, 242, 641, 341),
            (40, 567, 235, 607, 329), (45, 537, 226, 578, 319), (50, 506, 217, 540, 306), (55, 485, 208, 521, 298),
            (60, 466, 203, 500, 291), (65, 456, 199, 488, 281), (70, 445, 188, 476, 276), (75, 443, 182, 469, 263),
            (80, 445, 178, 474, 252), (85, 453, 174, 479, 241), (90, 462, 160, 489, 235), (95, 473, 156, 502, 226),
            (99, 490, 150, 514, 221),
        ],
    ),
    "E": (
        "fair hair, black coat; walks beside D",
        [
            (16, 754, 281, 768, 383), (17, 746, 279, 768, 385), (20, 726, 274, 763, 373), (25, 690, 263, 728, 358),
            (30, 666, 252, 700, 346), (35, 634, 247, 667, 340), (40, 600, 234, 636, 329), (45, 576, 223, 613, 316),
            (50, 551, 218, 590, 302), (55, 528, 209, 561, 294), (60, 500, 205, 531, 284), (65, 490, 199, 519, 277),
            (70, 478, 191, 508, 270), (75, 479, 187, 507, 257), (80, 474, 177, 501, 251), (85, 482, 172, 509, 242),
            (90, 487, 164, 517, 234), (95, 503, 159, 527, 227), (99, 514, 153, 539, 222),
        ],
    ),
    "F": (
        "alone; from the right edge to the top",
        [
            (39, 752, 292, 768, 400), (40, 740, 279, 768, 398), (42, 730, 280, 768, 395), (45, 706, 274, 750, 385),
            (50, 668, 259, 714, 368), (55, 640, 247, 680, 356), (60, 614, 234, 652, 340), (65, 602, 223, 634, 326),
            (70, 586, 209, 622, 310), (75, 576, 199, 608, 295), (80, 569, 189, 600, 285), (85, 564, 179, 595, 273),
            (90, 569, 173, 599, 258), (95, 576, 164, 608, 248), (99, 587, 157, 616, 238),
        ],
    ),
    "G": (
        "far away, white bag; comes out from behind the stairs",
        [
            (76, 282, 55, 295, 82), (78, 276, 52, 289, 83), (80, 273, 53, 287, 84), (82, 268, 53, 283, 86),
            (86, 257, 56, 272, 88), (90, 250, 58, 264, 89), (95, 236, 61, 250, 90), (99, 225, 61, 238, 94),
        ],
    ),
}  # fmt: skip

# First and last frame in which something stands before a person, or so close that a detector's box holds both: there
# the drawn box counts, whatever the detector says.
HIDDEN: dict[str, list[tuple[int, int]]] = {
    "A": [(26, 35), (42, 99)],
    "B": [(17, 35), (57, 59)],
    "C": [(22, 39), (51, 59)],
}


def main() -> None:
    frames = [json.loads(line)["detections"] for line in Path(sys.argv[1]).read_text("utf-8").splitlines()]
    found = [np.array([d["box"] for d in frame if d["label"] == "person"]).reshape(-1, 4) for frame in frames[:FRAMES]]
    rows = []
    for number, (name, (_, keys)) in enumerate(PEOPLE.items(), start=1):
        for frame, drawn in drawn_boxes(keys):
            is_hidden = any(first <= frame <= last for first, last in HIDDEN.get(name, []))
            box = None if is_hidden else nearest(drawn, found[frame])
            source = "drawn" if box is None else "detector"
            rows.append([frame, number, *np.round(drawn if box is None else box, 1).tolist(), source])
    rows.sort(key=lambda row: (row[0], row[1]))
    facts = {
        "clip": "walkers.mp4",
        "frames": FRAMES,
        "made_by": "boxes of the bundled detector at a score of 0.2, given to people by eye; drawn by eye where people "
        "are hidden (walkers_truth.README.md)",
        "people": {number: f"{name}: {words}" for number, (name, (words, _)) in enumerate(PEOPLE.items(), start=1)},
        "columns": ["frame", "id", "x1", "y1", "x2", "y2", "box"],
    }
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    print(json.dumps(facts, indent=1)[:-2] + f',\n "rows": [\n{lines}\n ]\n}}')


def drawn_boxes(keys: list[Key]) -> list[tuple[int, Numbers]]:
    """A box for every frame from the first key to the last."""
    table = np.array(keys, float)
    frames = np.arange(keys[0][0], keys[-1][0] + 1)
    boxes = np.stack([np.interp(frames, table[:, 0], table[:, side]) for side in range(1, 5)], axis=1)
    return list(zip(frames.tolist(), boxes, strict=True))


def nearest(drawn: Numbers, boxes: Numbers) -> Numbers | None:
    """The detector's box that overlaps the drawn one most, None when none does enough."""
    if not len(boxes):
        return None
    size = np.minimum(boxes[:, 2:], drawn[2:]) - np.maximum(boxes[:, :2], drawn[:2])
    shared = np.maximum(size, 0).prod(axis=1)
    overlap = shared / ((boxes[:, 2:] - boxes[:, :2]).prod(axis=1) + (drawn[2:] - drawn[:2]).prod() - shared)
    best: Numbers = boxes[overlap.argmax()]
    return best if overlap.max() >= SNAP_IOU else None


if __name__ == "__main__":
    main()
