"""Use case `model eval`: how good a bundle's boxes are. Two figures that are never mixed:

- **mAP** against labels that people made: COCO's metric. With a second bundle also the ratio of the two.
- **agreement** with a second bundle: AP50 with that bundle's boxes as the truth, every box counting the same, on frames
  that neither was calibrated with. It says how alike two models are, not how good they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zhcedge.app.eval_pictures import WorstFrames
from zhcedge.app.frame_set import Complain, Frame, FrameSet, frames_of_pictures
from zhcedge.app.model_quantize import chosen_frames
from zhcedge.app.progress import Progress
from zhcedge.backends.registry import DEVICES, ENGINES
from zhcedge.core.errors import ModelError, PipelineError, UsageError
from zhcedge.core.ports import Device, Program
from zhcedge.core.requests import DeviceSettings, EngineRequest
from zhcedge.core.types import DetectionArray, DetectorSettings
from zhcedge.models.accuracy import SAME_IOU, Precision, Tally, average_precision
from zhcedge.models.bundle import Bundle, load_bundle
from zhcedge.models.coco_labels import LabelledPicture, read_coco_labels
from zhcedge.models.quantize import read_digests

LOWEST_SCORE = 0.01
"""Boxes with less are not looked at: precision is a mean over all recalls, which low scores reach."""

_PHASE = 0.0  # calibration takes the middle of each share: so many frames of one video are others for each of the two
_PATIENCE_S = 300.0


@dataclass(frozen=True)
class EvalRequest:
    """What to evaluate.

    Attributes:
        bundle: a name or a folder.
        against: another bundle of the same labels: the truth of the agreement, and the base of the mAP ratio.
        labels: COCO JSON; its pictures lie in `images`, or beside it.
        images, video: a folder of pictures or a video.
        frames: most frames to look at, evenly spread; 0 for all.
        min_ratio: the answer is no below this mAP ratio, or without labels below this agreement.
        worst: folder for the frames that differ most, drawn.
        worst_count: how many of them.
    """

    bundle: str
    against: str = ""
    labels: Path | None = None
    images: Path | None = None
    video: Path | None = None
    frames: int = 0
    min_ratio: float | None = None
    worst: Path | None = None
    worst_count: int = 8


@dataclass(frozen=True)
class Agreement:
    """AP50 with the other bundle's boxes as the truth, those above its own threshold; and both sides' boxes above
    their thresholds, counted."""

    precision: Precision
    tally: Tally

    @property
    def ap50(self) -> float:
        """The figure: every box of the truth counts the same."""
        return self.precision.mean_of_boxes

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "ap50": self.ap50,
            "ap50_mean_of_labels": self.precision.mean,
            "per_label": _by_label(self.precision),
            "boxes": self.tally.as_dict(),
        }


@dataclass(frozen=True)
class EvalReport:
    """What was found.

    Attributes:
        frames: that were looked at; `excluded` were left out, because a bundle was calibrated with them.
        map_on_labels, against_map_on_labels: COCO's mAP on people's labels; None without labels, or another bundle.
        agreement: with the other bundle; None without one.
        drawn: pictures of the worst frames.
        min_ratio: what was asked for.
    """

    bundle: str
    against: str
    frames: int
    excluded: int
    map_on_labels: Precision | None
    against_map_on_labels: Precision | None
    agreement: Agreement | None
    drawn: tuple[Path, ...]
    min_ratio: float | None = None
    found: Mapping[int, DetectionArray] = field(default_factory=dict, repr=False)
    """Boxes above the bundle's threshold by the frame's number, for whoever compares them with something else."""
    against_found: Mapping[int, DetectionArray] = field(default_factory=dict, repr=False)

    @property
    def map_ratio(self) -> float | None:
        """The bundle's mAP on labels by the other one's; None without both."""
        if self.map_on_labels is None or self.against_map_on_labels is None:
            return None
        return self.map_on_labels.mean / self.against_map_on_labels.mean if self.against_map_on_labels.mean else 0.0

    @property
    def judged(self) -> tuple[str, float] | None:
        """The figure that `min_ratio` is about, with its name."""
        if self.map_ratio is not None:
            return "mAP ratio on labels", self.map_ratio
        return None if self.agreement is None else ("agreement AP50", self.agreement.ap50)

    @property
    def is_good_enough(self) -> bool:
        """Whether the judged figure reaches `min_ratio`; True where nothing was asked for."""
        return self.min_ratio is None or (self.judged is not None and self.judged[1] >= self.min_ratio)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "bundle": self.bundle,
            "against": self.against or None,
            "frames": self.frames,
            "excluded_calibration_frames": self.excluded,
            "labels": self._labels_dict(),
            "agreement": None if self.agreement is None else self.agreement.as_dict(),
            "min_ratio": self.min_ratio,
            "judged_by": None if self.judged is None else self.judged[0],
            "is_good_enough": self.is_good_enough,
            "worst": [str(path) for path in self.drawn],
        }

    def _labels_dict(self) -> dict[str, object] | None:
        if self.map_on_labels is None:
            return None
        other = self.against_map_on_labels
        return {
            "map": self.map_on_labels.mean,
            "against_map": None if other is None else other.mean,
            "map_ratio": self.map_ratio,
            "per_label": _by_label(self.map_on_labels),
            "against_per_label": None if other is None else _by_label(other),
        }


@dataclass
class _Boxes:
    """What was found, by frame number, scores from LOWEST_SCORE."""

    ours: dict[int, DetectionArray] = field(default_factory=dict)
    theirs: dict[int, DetectionArray] = field(default_factory=dict)
    excluded: int = 0


def eval_model(request: EvalRequest, progress: Progress, complain: Complain) -> EvalReport:
    """Evaluate a bundle on the CPU. Blocks.

    Args:
        complain: told of what is odd.

    Raises UsageError for wishes that make no sense; ModelError for bundles or labels that don't fit each other, or when
    nothing is left to look at; SourceMissingError, MediaError, BackendUnavailableError, OutputError as elsewhere.
    """
    _check(request)
    bundle = load_bundle(request.bundle)
    against = load_bundle(request.against) if request.against else None
    if against is not None and against.facts.labels != bundle.facts.labels:
        raise ModelError(
            f"has other labels than {bundle.facts.name}",
            where=against.facts.name,
            fix="compare with what it is made of",
        )
    labelled = read_coco_labels(request.labels, bundle.facts.labels) if request.labels is not None else ()
    frames = _frames(request, labelled).spread(request.frames, _PHASE)
    progress.begin("evaluating", len(frames))
    worst = WorstFrames(request.worst, request.worst_count if request.worst else 0)
    try:
        boxes = _run(bundle, against, frames, labelled, worst, progress.advance, complain)
    finally:
        progress.clear()
    report = _report(request, bundle, against, labelled, boxes, worst.write())
    if against is not None and not any(len(found) for found in report.against_found.values()):
        complain(f"{against.facts.name} finds nothing on these frames: there is nothing to agree with")
    return report


def _check(request: EvalRequest) -> None:
    if not request.against and request.labels is None:
        raise UsageError("there is no truth to compare with", fix="give --labels FILE, --against BUNDLE or both")
    if request.labels is not None and request.video is not None:
        raise UsageError("labels in COCO's format belong to pictures, not to a video", fix="give --images DIR")
    if request.min_ratio is not None and not request.against:
        raise UsageError("a ratio needs a second bundle", where="--min-ratio", fix="add --against BUNDLE")


def _frames(request: EvalRequest, labelled: tuple[LabelledPicture, ...]) -> FrameSet:
    if request.labels is None:
        return chosen_frames(request.images, request.video)
    folder = request.images or request.labels.parent
    return frames_of_pictures(tuple(folder / picture.name for picture in labelled))


def _calibrated_with(*bundles: Bundle | None) -> frozenset[str]:
    digests: frozenset[str] = frozenset()
    for bundle in bundles:
        if bundle is not None and bundle.quantisation is not None:
            table = bundle.folder / bundle.quantisation.table
            digests |= read_digests(table.read_text(encoding="utf-8"), str(table))
    return digests


def _run(
    bundle: Bundle,
    against: Bundle | None,
    frames: FrameSet,
    labelled: tuple[LabelledPicture, ...],
    worst: WorstFrames,
    advance: Callable[[], None],
    complain: Complain,
) -> _Boxes:
    boxes, calibrated = _Boxes(), _calibrated_with(bundle, against)
    with contextlib.ExitStack() as stack:
        device = DEVICES.get("cpu")(DeviceSettings())
        stack.callback(device.close)
        find = stack.enter_context(open_finder(bundle, device, 0))
        find_other = stack.enter_context(open_finder(against, device, 1)) if against is not None else None
        for frame in frames.frames(device, complain):
            advance()
            if calibrated and frame.digest in calibrated:
                boxes.excluded += 1
                continue
            ours = boxes.ours[frame.number] = find(frame)
            shown = above(ours, bundle)
            if find_other is not None and against is not None:
                boxes.theirs[frame.number] = find_other(frame)
                worst.offer(frame, above(boxes.theirs[frame.number], against), shown)
            else:
                worst.offer(frame, labelled[frame.number].boxes, shown)
    if not boxes.ours:
        raise ModelError(
            "no frame is left: a bundle was calibrated with every one of them"
            if boxes.excluded
            else "there is no frame",
            where="evaluation",
            fix="evaluate on other pictures than those of the calibration",
        )
    return boxes


@contextlib.contextmanager
def open_finder(bundle: Bundle, device: Device[object], lane_index: int) -> Iterator[Callable[[Frame], DetectionArray]]:
    """Runs a bundle's model on frames by the stages of a run, with the lowest threshold."""
    facts = bundle.facts
    engine = ENGINES.get("onnxruntime-cpu")(EngineRequest(bundle.model_path, facts), device)
    try:
        lane = device.create_lane(lane_index, facts)
        settings = DetectorSettings(min(LOWEST_SCORE, facts.score_threshold), facts.nms_iou)
        stages = [device.preprocess(lane, facts), engine.bind(lane), device.detect(lane, facts, settings)]
        program: Program[object] = device.compile(stages, lane, 1)

        def find(frame: Frame) -> DetectionArray:
            if not program.launch([frame.slot]).wait(_PATIENCE_S):
                raise PipelineError(f"a frame takes longer than {_PATIENCE_S:.0f} s", where=frame.name)
            results = frame.slot.results
            found: DetectionArray = results["detections"][0][: int(results["count"][0])].copy()
            return found

        yield find
    finally:
        engine.close()


def above(boxes: DetectionArray, bundle: Bundle) -> DetectionArray:
    """What the bundle reports: NMS takes the best first, so a higher threshold only cuts the end off."""
    kept: DetectionArray = boxes[boxes["score"] > bundle.facts.score_threshold]
    return kept


def _report(
    request: EvalRequest,
    bundle: Bundle,
    against: Bundle | None,
    labelled: tuple[LabelledPicture, ...],
    boxes: _Boxes,
    drawn: tuple[Path, ...],
) -> EvalReport:
    labels = bundle.facts.labels
    on_labels = against_on_labels = None
    if labelled:
        truth = {number: labelled[number].boxes for number in boxes.ours}
        crowds: dict[int, npt.NDArray[np.bool_]] = {number: labelled[number].is_crowd for number in boxes.ours}
        on_labels = average_precision(truth, boxes.ours, labels, crowds=crowds)
        if against is not None:
            against_on_labels = average_precision(truth, boxes.theirs, labels, crowds=crowds)
    ours = {number: above(found, bundle) for number, found in boxes.ours.items()}
    theirs = {number: above(found, against) for number, found in boxes.theirs.items()} if against else {}
    agreement = None
    if against is not None:
        tally = Tally()
        for number in ours:
            tally.add(theirs[number], ours[number])
        agreement = Agreement(average_precision(theirs, boxes.ours, labels, (SAME_IOU,)), tally)
    return EvalReport(
        bundle=bundle.facts.name,
        against=against.facts.name if against else "",
        frames=len(boxes.ours),
        excluded=boxes.excluded,
        map_on_labels=on_labels,
        against_map_on_labels=against_on_labels,
        agreement=agreement,
        drawn=drawn,
        min_ratio=request.min_ratio,
        found=ours,
        against_found=theirs,
    )


def _by_label(precision: Precision) -> dict[str, dict[str, float]]:
    return {name: {"truth": one.truth, "ap": one.precision} for name, one in precision.by_label.items()}
