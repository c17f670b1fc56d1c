"""The whole chain on the bundled clip against what a larger detector finds on it (pseudo-truth, not hand labels)."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.contract.devices import DeviceCase, each_device, make_slot
from zhcedge.backends.registry import SOURCES
from zhcedge.core.ports import EndOfStream, Idle, Source
from zhcedge.core.requests import SourceRequest
from zhcedge.core.types import DetectorSettings, PixelFormat
from zhcedge.models.bundle import load_bundle

REFERENCE = Path(__file__).resolve().parent.parent / "data" / "walkers.reference.json"
PATIENCE_S = 60.0
SAME_BOX_IOU = 0.5
SOURCE_OF_DEVICE = {"cpu": "pyav"}

Box = tuple[float, float, float, float]
Found = tuple[str, Box]


@dataclass
class Tally:
    """Counts over all compared frames."""

    reference: int = 0
    found: int = 0
    matched: int = 0

    @property
    def recall(self) -> float:
        return self.matched / self.reference

    @property
    def extra(self) -> float:
        """Share of the found boxes that match none of the reference."""
        return (self.found - self.matched) / self.found


class FixedClock:
    """Time that stands still: nothing here depends on it."""

    def monotonic_ns(self) -> int:
        return 1

    def wall_ns(self) -> int:
        return 1

    def is_synced(self) -> bool:
        return True


def iou(a: Box, b: Box) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    intersection = max(width, 0.0) * max(height, 0.0)
    return intersection / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - intersection)


def matches(reference: list[Found], found: list[Found]) -> int:
    """One-to-one pairs of one label, best overlap first."""
    pairs = sorted(
        (
            (iou(expected[1], box[1]), first, second)
            for first, expected in enumerate(reference)
            for second, box in enumerate(found)
            if expected[0] == box[0]
        ),
        reverse=True,
    )
    taken: tuple[set[int], set[int]] = (set(), set())
    for overlap, first, second in pairs:
        if overlap >= SAME_BOX_IOU and first not in taken[0] and second not in taken[1]:
            taken[0].add(first)
            taken[1].add(second)
    return len(taken[0])


def load_reference() -> dict[int, list[Found]]:
    frames = json.loads(REFERENCE.read_text())["frames"]
    return {frame["frame"]: [(thing["label"], tuple(thing["box"])) for thing in frame["objects"]] for frame in frames}


def detected(results: npt.NDArray[np.void], labels: tuple[str, ...]) -> list[Found]:
    rows = results["detections"][0][: int(results["count"][0])]
    return [
        (labels[label], tuple(box)) for label, box in zip(rows["label"].tolist(), rows["box"].tolist(), strict=True)
    ]


def detect_frames(case: DeviceCase, frames: set[int]) -> dict[int, list[Found]]:
    """What the device finds on those frames of the clip, with the bundle's own thresholds."""
    bundle = load_bundle("nanodet-g-416")
    facts = bundle.facts
    clip = resources.files("zhcedge").joinpath("data").joinpath("walkers.mp4")
    found: dict[int, list[Found]] = {}
    with resources.as_file(clip) as path, case.open() as device:
        request = SourceRequest(0, "walkers", str(path), is_realtime=False, is_looped=False, clock=FixedClock())
        source: Source[object] = SOURCES.get(SOURCE_OF_DEVICE[case.device])(request, device)
        slot = make_slot(device, replace(source.open().format, pixel_format=PixelFormat.NV12))
        engine = case.open_engine(bundle.model_path, facts, device)
        lane = device.create_lane(0, facts)
        settings = DetectorSettings(facts.score_threshold, facts.nms_iou)
        stages = [device.preprocess(lane, facts), engine.bind(lane), device.detect(lane, facts, settings)]
        program = device.compile(stages, lane, 1)
        while not isinstance(lease := source.read(PATIENCE_S), EndOfStream):
            assert not isinstance(lease, Idle), "a file is never idle"
            sequence = lease.info.sequence
            if sequence in frames:
                assert device.ingest(lease.surface, slot).wait(PATIENCE_S)
                assert program.launch([slot]).wait(PATIENCE_S)
                found[sequence] = detected(slot.results, facts.labels)
            lease.release()
        engine.close()
        source.close()
    return found


@each_device
def test_the_clip_agrees_with_the_larger_detector(case: DeviceCase) -> None:
    reference = load_reference()
    found = detect_frames(case, set(reference))
    assert set(found) == set(reference)
    everything, persons = Tally(), Tally()
    for frame, expected in reference.items():
        for tally, label in ((everything, None), (persons, "person")):
            wanted = [thing for thing in expected if label in (None, thing[0])]
            got = [thing for thing in found[frame] if label in (None, thing[0])]
            tally.reference += len(wanted)
            tally.found += len(got)
            tally.matched += matches(wanted, got)
    print(f"all labels {everything}, persons {persons}")
    assert everything.recall >= 0.88, everything
    assert everything.extra <= 0.11, everything
    assert persons.recall >= 0.95, persons
    assert persons.extra <= 0.05, persons
