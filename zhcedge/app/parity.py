"""`zhc-edge parity`: the same clip through two profiles, and whether they find the same objects.

Both run the whole frame path, one after the other. Frames are matched by their number; in each frame boxes of the same
label are matched one to one, the best overlaps first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from zhcedge.app.wiring import RunContext, build_plan
from zhcedge.config.schema import Config
from zhcedge.core.errors import BackendUnavailableError, PipelineError, UsageError
from zhcedge.core.lifecycle import Lifecycle
from zhcedge.core.types import DetectionArray
from zhcedge.pipeline.segment import Segment
from zhcedge.profiles import profile
from zhcedge.service.clock import SystemClock
from zhcedge.service.log import set_up_logging

MIN_IOU = 0.5
"""Overlap from which two boxes of one label are the same object."""

MIN_MATCHED, MIN_MEDIAN_IOU, MAX_SCORE_P95 = 0.97, 0.95, 0.02
"""Least share of all boxes that have a partner, least median overlap, largest 95th percentile of score differences.

Not equality: engines round differently, and a score near the threshold may fall on either side of it.
"""

_DRAIN_S = 0.002  # far less than the ring holds, at any frame rate


@dataclass
class ParityReport:
    """What a comparison found.

    Attributes:
        profiles: the two names; `boxes` has their totals, in this order.
        matched: pairs of boxes.
        ious, score_differences: of the pairs, 0..1.
        missing_frames: frames that only one of them delivered.
    """

    profiles: tuple[str, str]
    frames: int = 0
    missing_frames: int = 0
    boxes: list[int] = field(default_factory=lambda: [0, 0])
    matched: int = 0
    ious: list[float] = field(default_factory=list)
    score_differences: list[float] = field(default_factory=list)

    @property
    def matched_share(self) -> float:
        """Of the profile that found more; 1 where neither found anything."""
        return self.matched / max(self.boxes) if any(self.boxes) else 1.0

    @property
    def median_iou(self) -> float:
        return float(np.median(self.ious)) if self.ious else 1.0

    @property
    def score_p95(self) -> float:
        return float(np.percentile(self.score_differences, 95)) if self.score_differences else 0.0

    @property
    def agrees(self) -> bool:
        return (
            self.missing_frames == 0
            and self.frames > 0
            and self.matched_share >= MIN_MATCHED
            and self.median_iou >= MIN_MEDIAN_IOU
            and self.score_p95 <= MAX_SCORE_P95
        )

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "profiles": list(self.profiles),
            "frames": self.frames,
            "missing_frames": self.missing_frames,
            "boxes": self.boxes,
            "matched": self.matched,
            "matched_share": self.matched_share,
            "iou_median": self.median_iou,
            "iou_least": min(self.ious, default=1.0),
            "score_difference_p95": self.score_p95,
            "score_difference_largest": max(self.score_differences, default=0.0),
            "agrees": self.agrees,
        }


def parity(profiles: Sequence[str], clip: str, progress: Callable[[str], None], *, frames: int = 0) -> ParityReport:
    """Run `clip` through both profiles and compare. Blocks; minutes for a long clip.

    Args:
        profiles: two names.
        frames: to compare, 0 for all of the clip.

    Raises UsageError for anything but two known profiles, BackendUnavailableError for one that can't run here, and
    what a run raises.
    """
    if len(profiles) != 2 or profiles[0] == profiles[1]:
        raise UsageError(f"{len(set(profiles))} profiles were named", fix="name two, such as --profiles cpu,rtx")
    for name in profiles:
        profile(name)
    set_up_logging("WARNING")
    found = []
    for name in profiles:
        progress(f"{name}: {clip}")
        found.append(_detections(name, clip, frames))
    return compare((profiles[0], profiles[1]), found[0], found[1])


def compare(
    profiles: tuple[str, str], first: dict[int, DetectionArray], second: dict[int, DetectionArray]
) -> ParityReport:
    """Compare detections by frame number. Pure."""
    report = ParityReport(profiles)
    report.missing_frames = len(first.keys() ^ second.keys())
    for number in sorted(first.keys() & second.keys()):
        report.frames += 1
        ours, theirs = first[number], second[number]
        report.boxes[0] += len(ours)
        report.boxes[1] += len(theirs)
        for iou, a, b in _pairs(ours, theirs):
            report.matched += 1
            report.ious.append(iou)
            report.score_differences.append(abs(float(ours["score"][a]) - float(theirs["score"][b])))
    return report


def _pairs(ours: DetectionArray, theirs: DetectionArray) -> list[tuple[float, int, int]]:
    """(overlap, index, index) of the boxes that belong together, each box once, the best overlaps first."""
    if not len(ours) or not len(theirs):
        return []
    overlaps = _overlaps(ours["box"].astype(np.float64), theirs["box"].astype(np.float64))
    overlaps[ours["label"][:, None] != theirs["label"][None, :]] = 0.0
    pairs: list[tuple[float, int, int]] = []
    while (best := float(overlaps.max())) >= MIN_IOU:
        a, b = divmod(int(overlaps.argmax()), len(theirs))
        pairs.append((best, a, b))
        overlaps[a, :] = overlaps[:, b] = 0.0
    return pairs


def _overlaps(ours: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Intersection over union of every pair of boxes, [ours, theirs]."""
    low = np.maximum(ours[:, None, :2], theirs[None, :, :2])
    high = np.minimum(ours[:, None, 2:], theirs[None, :, 2:])
    both = np.prod(np.maximum(high - low, 0.0), axis=2)
    areas = [np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) for boxes in (ours, theirs)]
    overlaps: npt.NDArray[np.float64] = both / np.maximum(areas[0][:, None] + areas[1][None, :] - both, 1e-12)
    return overlaps


def _detections(name: str, clip: str, frames: int) -> dict[int, DetectionArray]:
    """Detections of every frame by its number."""
    config = Config.model_validate({"profile": name, "channels": {"parity": {"source": {"uri": clip}}}})
    segment, found = Segment(), dict[int, DetectionArray]()
    is_over = threading.Event()

    def drain() -> None:
        while True:
            is_last = is_over.is_set()
            for record in segment.ring.drain():
                if not record.is_end:
                    found[record.info.sequence] = record.detections
            if is_last:
                return
            time.sleep(_DRAIN_S)

    reader = threading.Thread(target=drain, name="parity", daemon=True)
    try:
        with build_plan(config, RunContext(segment, SystemClock(), Lifecycle())) as plan:
            runtime = plan.warm_up()
            reader.start()
            runtime.process(frames)
    except BackendUnavailableError as error:
        raise BackendUnavailableError(
            f"profile {name} can't run here: {error.what}", where=error.where, fix=error.fix
        ) from error
    finally:
        is_over.set()
        if reader.ident is not None:
            reader.join()
    if segment.ring.dropped:
        raise PipelineError(f"{segment.ring.dropped} results were overwritten before they were read", where="parity")
    return found
