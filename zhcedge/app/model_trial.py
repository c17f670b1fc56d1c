"""A model on one picture, through the stages that a run uses: what it finds, and what looks wrong about it."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from zhcedge.backends.registry import DEVICES, ENGINES, source_factory
from zhcedge.config.channel import IMAGE_SUFFIXES
from zhcedge.core.errors import MediaError, PipelineError
from zhcedge.core.ports import Device, EndOfStream, FrameSlot, Idle, Lease
from zhcedge.core.requests import DeviceSettings, EngineRequest, SourceRequest
from zhcedge.core.types import (
    MAX_DETECTIONS,
    DetectionArray,
    DetectorSettings,
    HeadKind,
    MemoryDomain,
    ModelFacts,
    PixelFormat,
    Surface,
)
from zhcedge.models.bundle import Bundle
from zhcedge.profiles import profile
from zhcedge.service.clock import SystemClock

CLIP_FRAME = 40
"""The frame of the bundled clip that is looked at: several people, none of them hidden."""

_PATIENCE_S = 300.0  # a large model on a small board
_READ_S = 1.0
_TINY_PX, _WHOLE = 2.0, 0.98


@dataclass(frozen=True)
class Trial:
    """What a model found in one picture.

    Attributes:
        engine: which library ran it.
        picture: (width, height), pixels.
        candidates: boxes above the threshold before NMS.
        boxes: (label, score, (x1, y1, x2, y2) in pixels of the picture), best first.
        call_ms: one call of all stages, after a first one.
        oddities: what makes it unlikely that the model is read rightly.
    """

    engine: str
    picture: tuple[int, int]
    candidates: int
    boxes: tuple[tuple[str, float, tuple[float, ...]], ...]
    call_ms: float
    oddities: tuple[str, ...] = field(default=())

    @property
    def counts(self) -> dict[str, int]:
        """Boxes of each label, the most frequent first."""
        return dict(Counter(label for label, _, _ in self.boxes).most_common())


def try_model(
    bundle: Bundle, picture: Path, *, profile_name: str = "cpu", frame: int = 0, drawing: Path | None = None
) -> Trial:
    """Run a model on frame `frame` of an image or a video. Blocks.

    Args:
        drawing: JPEG to write, with the boxes drawn; the cpu profile only.

    Raises what a backend raises: ModelError, SourceMissingError, MediaError, PipelineError, OutputError.
    """
    chosen, facts = profile(profile_name), bundle.facts
    settings = DetectorSettings(facts.score_threshold, facts.nms_iou)
    with contextlib.ExitStack() as stack:
        device = DEVICES.get(chosen.device)(DeviceSettings())
        stack.callback(device.close)
        engine = ENGINES.get(chosen.engine)(EngineRequest(bundle.model_path, facts), device)
        stack.callback(engine.close)
        kind = "image" if picture.suffix.lower() in IMAGE_SUFFIXES else "file"
        slot = stack.enter_context(_filled_slot(device, chosen.sources[kind], picture, frame))
        device.admit(slot)
        lane = device.create_lane(0, facts)
        stages = [
            device.preprocess(lane, facts),
            engine.bind(lane),
            device.detect(lane, facts, settings),
            device.overlay(lane, facts.labels),
        ]
        search = device.compile(stages[:3], lane, 1)
        draw = device.compile(stages, lane, 1)
        for _ in range(2):  # the first call makes what the second one is measured without
            started = time.monotonic()
            _finish(search.launch([slot]).wait(_PATIENCE_S))
            call_ms = (time.monotonic() - started) * 1e3
        _finish(draw.launch([slot]).wait(_PATIENCE_S))
        image, count = slot.surface.format, int(slot.results["count"][0])
        found: DetectionArray = slot.results["detections"][0][:count].copy()
        candidates = int(slot.results["candidates"][0])
        if drawing is not None:
            _write_drawing(slot.surface, drawing)
        boxes = tuple(
            (facts.labels[int(one["label"])], float(one["score"]), tuple(map(float, one["box"]))) for one in found
        )
        size = (image.width_px, image.height_px)
        return Trial(engine.description, size, candidates, boxes, call_ms, oddities(found, candidates, facts, size))


def oddities(found: DetectionArray, candidates: int, facts: ModelFacts, size_px: tuple[int, int]) -> tuple[str, ...]:
    """What a model that is read rightly does not do, in words. Pure.

    Args:
        found: detections in a picture of `size_px`, (width, height).
    """
    if not len(found):
        if candidates:
            return (f"{candidates} boxes are all outside of the picture: the head or the size is wrong",)
        return (
            f"nothing was found with a score above {facts.score_threshold}: the picture shows nothing that it knows, "
            "or --head, --scale or --bgr must be another one",
        )
    boxes, odd = found["box"].astype(np.float64), []
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    share = width * height / (size_px[0] * size_px[1])
    if len(found) > 1 and np.ptp(boxes, axis=0).max() < 1.0:
        odd.append(f"all {len(found)} boxes are the same")
    if max(width.max(), height.max()) < _TINY_PX:
        odd.append(f"no box is larger than {_TINY_PX:g} pixels: the output may count from 0 to 1, not in pixels")
    if share.min() > _WHOLE:
        odd.append("every box is the whole picture: the head is wrong")
    if found["score"].max() > 1.0:
        odd.append(f"a score is {found['score'].max():.3g}, above 1: these are no probabilities")
    if len(found) == MAX_DETECTIONS:
        odd.append(f"there are {MAX_DETECTIONS} boxes, which is the most: the head, the scale or the scores are wrong")
    elif candidates > max(facts.anchors // 4, 100):
        odd.append(f"{candidates} of {facts.anchors} boxes are above the threshold: the head is wrong")
    return tuple(odd)


@contextlib.contextmanager
def _filled_slot(device: Device[object], source_name: str, picture: Path, number: int) -> Iterator[FrameSlot[object]]:
    """A slot with one frame of an image or video in it."""
    request = SourceRequest(0, "test", str(picture), is_realtime=False, is_looped=False, clock=SystemClock())
    source = source_factory(source_name)(request, device)
    try:
        given = source.open().format
        image = replace(given, pixel_format=PixelFormat.NV12)
        slot = FrameSlot(0, 0, device.arena.surface(image, "test"), device.arena.results("test"))
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            lease = source.read(_READ_S)
            if isinstance(lease, EndOfStream) or time.monotonic() > deadline:
                raise MediaError(f"has no frame {number}", where=str(picture))
            if isinstance(lease, Idle):
                continue
            if lease.info.sequence >= number:
                _take(device, lease, slot)
                break
            lease.release()
        yield slot
    finally:
        source.close()


def _take(device: Device[object], lease: Lease[object], slot: FrameSlot[object]) -> None:
    fence = device.ingest(lease.surface, slot, lease.ready)
    lease.release(fence)
    _finish(fence.wait(_PATIENCE_S))


def _finish(is_done: bool) -> None:
    if not is_done:
        raise PipelineError(f"the model is not done with one picture after {_PATIENCE_S:.0f} s", where="test picture")


def _write_drawing(surface: Surface[object], path: Path) -> None:
    from zhcedge.media.picture import write_pixels

    write_pixels(pixels_of(surface), path)


def pixels_of(surface: Surface[object]) -> npt.NDArray[np.uint8]:
    """RGB of a host surface, [height, width, 3], by the letterbox at scale 1: the colours are those that a model sees.

    Raises PipelineError for a surface that is not in host memory.
    """
    from zhcedge.backends.cpu.arena import CpuArena, CpuBuffer
    from zhcedge.backends.cpu.letterbox import PictureLetterbox

    if surface.domain is not MemoryDomain.HOST:
        raise PipelineError("the picture is drawn by the cpu profile only", where="test picture")
    height, width = surface.format.height_px, surface.format.width_px
    planes = np.empty((3, height, width), np.float32)
    letterbox = PictureLetterbox(surface.format, _pixel_facts(width, height), CpuArena(), "test picture")
    letterbox(cast("Surface[CpuBuffer]", surface), planes)
    return np.ascontiguousarray(np.rint(planes).astype(np.uint8).transpose(1, 2, 0))


def _pixel_facts(width: int, height: int) -> ModelFacts:
    """A model whose input is the very picture, 0..255."""
    return ModelFacts(
        name="picture",
        sha256="",
        labels=("",),
        input_name="",
        output_name="",
        input_shape=(1, 3, height, width),
        output_shape=(1, 5, 1),
        scale=1.0,
        pad_value=0,
        head=HeadKind.YOLO_ANCHOR_FREE,
        score_threshold=0.5,
        nms_iou=0.5,
    )
