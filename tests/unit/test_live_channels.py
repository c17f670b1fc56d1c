"""What changes about a running channel: detection on and off, its rate, and pictures of it, over simulated parts."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.parts import SimSink, SimSource
from tests.unit.test_roster import AwayAtFirst, Camera, Daemon, part
from zhcedge.backends.cpu.arena import CpuBuffer
from zhcedge.core.errors import NotNowError, UsageError
from zhcedge.core.ports import Fence, FrameSlot
from zhcedge.core.types import FrameInfo, ImageFormat, Surface
from zhcedge.pipeline import snapshots
from zhcedge.pipeline.channel import ChannelParts, ChannelSettings
from zhcedge.pipeline.ledger import Verdict
from zhcedge.pipeline.snapshots import FrameOrder
from zhcedge.pipeline.tiles import Regions

EVERYWHERE = [[(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]]
LEFT_HALF = [[(0.0, 0.0), (0.49, 0.0), (0.49, 1.0), (0.0, 1.0)]]
BLACK, GREY = 16, 128


@dataclass
class SimJpeg:
    """An encoder whose bitstream is the picture's luma. `on_encode` may wait or raise."""

    on_encode: Callable[[], None] = lambda: None
    prepared: list[ImageFormat] = field(default_factory=list)
    size_bytes: int = 0
    is_closed: bool = False

    def prepare(self, image: ImageFormat) -> None:
        self.prepared.append(image)

    def encode(self, surface: Surface[CpuBuffer], after: Fence | None = None) -> memoryview:
        self.on_encode()
        if self.size_bytes:
            return memoryview(b"x" * self.size_bytes)
        luma = surface.planes[0]
        return memoryview(luma.buffer[: luma.rows, : luma.width_bytes].tobytes())

    def close(self) -> None:
        self.is_closed = True


def daemon_of(parts: list[ChannelParts[CpuBuffer]], encoder: SimJpeg | None = None) -> Daemon:
    return Daemon(parts, make_jpeg=lambda: encoder or SimJpeg())


def luma_of(jpeg: bytes) -> np.ndarray:
    return np.frombuffer(jpeg, np.uint8).reshape(48, 64)


def is_hidden(luma: np.ndarray) -> bool:
    """Nothing is left of the grey picture, but for what the edges of a tag's letters happen to share with it."""
    return bool((luma == GREY).mean() < 0.02)


def kinds_of(daemon: Daemon) -> list[bool]:
    daemon.records += daemon.segment.ring.drain()
    return [record.is_unseen for record in daemon.records if not record.is_end]


# -- detection ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("settings", [ChannelSettings(), ChannelSettings(regions=Regions(columns=2))], ids=str)
def test_frames_that_nobody_looks_at_say_so_in_the_ring_and_reach_the_sinks(settings: ChannelSettings) -> None:
    seen: list[int] = []
    lumas: list[np.ndarray] = []

    def look(slot: FrameSlot[CpuBuffer]) -> None:
        seen.append(int(slot.results[0]["count"]))
        lumas.append(slot.surface.planes[0].buffer[:48, :64].copy())

    sinks = [("sim", SimSink(on_submit=look))]
    with daemon_of([part("a", Camera(), 0, sinks=sinks, settings=settings, masks=LEFT_HALF)]) as daemon:
        daemon.wait_for(lambda: len(kinds_of(daemon)) > 5)
        assert daemon.runtime.live.detect("a", False) is False
        daemon.wait_for(lambda: kinds_of(daemon).count(True) > 5)
        assert daemon.runtime.live.detect("a", True) is True
        off = len(kinds_of(daemon))
        daemon.wait_for(lambda: len(kinds_of(daemon)) > off + 5 and not kinds_of(daemon)[-1])
    kinds = kinds_of(daemon)
    assert [kind for kind, _ in itertools.groupby(kinds)] == [False, True, False]
    for record in daemon.records:
        assert record.is_end or bool(len(record.detections)) != record.is_unseen
    assert [bool(count) for count in seen] == [not kind for kind in kinds]
    assert all((luma[:, :30] == BLACK).all() or (luma[:, :30] != GREY).any() for luma in lumas)
    for luma, kind in zip(lumas, kinds, strict=True):
        if kind:  # nothing but the mask is drawn
            assert (luma[:, :30] == BLACK).all()
            assert (luma[:, 34:] == GREY).all()
    assert daemon.report is not None
    assert daemon.report.ledger.verdict is Verdict.PASS


def test_what_skips_frames_looks_at_the_first_one_once_it_may_again() -> None:
    settings = ChannelSettings(detect_interval=1_000_000)
    with daemon_of([part("a", Camera(), 0, settings=settings)]) as daemon:
        daemon.wait_for(lambda: len(kinds_of(daemon)) == 1)
        daemon.runtime.live.detect("a", False)
        daemon.wait_for(lambda: any(kinds_of(daemon)))
        daemon.runtime.live.detect("a", True)
        daemon.wait_for(lambda: kinds_of(daemon).count(False) == 2)


# -- rate --------------------------------------------------------------------------------------------------------
def test_a_lower_rate_drops_frames_evenly_and_counts_none_of_them_as_lost() -> None:
    # Ten frames a second by their own times, which is what counts; they come every 2 ms here.
    with daemon_of([part("a", Camera(), 0)]) as daemon:
        daemon.wait_for(lambda: len(daemon.frames_of(0)) > 5)
        dropped = daemon.roster.dropped
        assert daemon.runtime.live.limit_fps("a", 2) == 2
        since = daemon.frames_of(0)[-1]
        daemon.wait_for(lambda: len([n for n in daemon.frames_of(0) if n > since + 10]) > 10)
        slow = [number for number in daemon.frames_of(0) if number > since + 10]
        assert {b - a for a, b in itertools.pairwise(slow)} == {5}
        assert daemon.runtime.live.limit_fps("a", 0) == 0
        daemon.wait_for(lambda: len(daemon.frames_of(0)) > 60)
        assert daemon.roster.dropped - dropped < 10
    assert 1 in {b - a for a, b in itertools.pairwise(daemon.frames_of(0)[-20:])}


def test_a_file_that_is_worked_through_has_no_rate() -> None:
    slow = SimSource(frames=100_000, on_read=lambda sequence: time.sleep(0.002))
    with daemon_of([part("a", slow, 0)]) as daemon:
        with pytest.raises(UsageError, match=r"set source\.realtime to true"):
            daemon.runtime.live.limit_fps("a", 5)
        assert daemon.runtime.live.limit_fps("a", 0) == 0


def test_no_nonsense_is_a_rate() -> None:
    with daemon_of([part("a", Camera(), 0)]) as daemon:
        for fps in (-1.0, 1000.5, float("nan"), float("inf")):
            with pytest.raises(UsageError, match="no frame rate"):
                daemon.runtime.live.limit_fps("a", fps)


# -- who may be asked --------------------------------------------------------------------------------------------
def test_nobody_a_camera_that_never_came_and_one_that_has_ended_are_refused() -> None:
    class Never(AwayAtFirst):
        tries_left = 1_000_000

    over = Camera()
    parts = [part("a", Camera(), 0), part("late", Never(), 1, is_patient=True), part("over", over, 2)]
    with daemon_of(parts) as daemon:
        live = daemon.runtime.live
        over.is_over.set()
        daemon.wait_for(lambda: any(record.is_end for record in daemon.records))
        calls: list[Callable[[str], object]] = [
            lambda name: live.detect(name, False),
            lambda name: live.limit_fps(name, 1),
            live.snapshot,
        ]
        for call in calls:
            with pytest.raises(UsageError, match="no open channel 'x'"):
                call("x")
            with pytest.raises(NotNowError, match="not there yet"):
                call("late")
            with pytest.raises(NotNowError, match="has ended"):
                call("over")


# -- snapshots ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "rest",
    [
        {},
        {"sinks": [("sim", SimSink())]},
        {"settings": ChannelSettings(regions=Regions(columns=2))},
        {"settings": ChannelSettings(regions=Regions(columns=2)), "sinks": [("sim", SimSink())]},
        {"settings": ChannelSettings(detect_interval=1000)},
        {"settings": ChannelSettings(detect_interval=3), "sinks": [("sim", SimSink())]},
    ],
    ids=["plain", "sink", "tiles", "tiles-sink", "skips", "skips-sink"],
)
@pytest.mark.parametrize("has_neighbour", [False, True], ids=["alone", "beside-a-sink"])
@pytest.mark.parametrize("is_on", [True, False], ids=["detects", "unseen"])
def test_every_kind_of_channel_has_its_masks_in_the_picture(
    rest: dict[str, object], has_neighbour: bool, is_on: bool
) -> None:
    parts = [part("a", Camera(), 0, masks=EVERYWHERE, **rest)]
    if has_neighbour:  # then the lanes draw, for all channels
        parts.append(part("b", Camera(), 1, sinks=[("sim", SimSink())]))
    with daemon_of(parts) as daemon:
        daemon.wait_for(lambda: len(daemon.frames_of(0)) > 0)
        if not is_on:
            daemon.runtime.live.detect("a", False)
            daemon.wait_for(lambda: any(record.is_unseen for record in daemon.records))
        snapshot = daemon.runtime.live.snapshot("a")
        luma = luma_of(snapshot.jpeg)
        assert is_hidden(luma)
        assert bool((luma != BLACK).any()) == is_on  # a box is drawn on top
        assert snapshot.info.sequence > 0
    assert daemon.error is None
    assert daemon.report is not None
    assert daemon.report.ledger.verdict is Verdict.PASS
    assert (daemon.report.snapshots, daemon.report.snapshots_refused) == (1, 0)


def test_one_at_a_time_others_are_refused_and_the_run_goes_on_meanwhile() -> None:
    may_go_on, is_encoding = threading.Event(), threading.Event()

    def wait() -> None:
        is_encoding.set()
        assert may_go_on.wait(20)

    encoder, pictures = SimJpeg(on_encode=wait), list[bytes]()
    with daemon_of([part("a", Camera(), 0), part("b", Camera(), 1)], encoder) as daemon:
        live = daemon.runtime.live
        taker = threading.Thread(target=lambda: pictures.append(live.snapshot("a").jpeg))
        taker.start()
        assert is_encoding.wait(20)
        seen = len(daemon.frames_of(0))
        daemon.wait_for(lambda: len(daemon.frames_of(0)) > seen + 30)
        assert "snapshot: 1" in daemon.roster.channels[0].pool.holders()
        for name in ("a", "b"):
            with pytest.raises(NotNowError, match="busy: a snapshot is being taken"):
                live.snapshot(name)
        may_go_on.set()
        taker.join(20)
        with pytest.raises(NotNowError, match="busy: one snapshot in 1 s"):
            live.snapshot("a")
        assert live.snapshot("b").jpeg
        assert "snapshot" not in daemon.roster.channels[0].pool.holders()
    assert len(pictures) == 1
    assert daemon.report is not None
    assert (daemon.report.snapshots, daemon.report.snapshots_refused) == (2, 3)
    assert encoder.is_closed


def test_a_channel_that_is_removed_waits_for_the_picture_that_is_being_made_of_it() -> None:
    may_go_on, is_encoding = threading.Event(), threading.Event()

    def wait() -> None:
        is_encoding.set()
        assert may_go_on.wait(20)

    with daemon_of([part("a", Camera(), 0, masks=EVERYWHERE), part("b", Camera(), 1)], SimJpeg(wait)) as daemon:
        pictures = list[bytes]()
        taker = threading.Thread(target=lambda: pictures.append(daemon.runtime.live.snapshot("a").jpeg))
        taker.start()
        assert is_encoding.wait(20)
        remover = threading.Thread(target=daemon.roster.remove, args=("a",))
        remover.start()
        daemon.wait_for(lambda: any(record.is_end for record in daemon.records))
        remover.join(0.2)
        assert remover.is_alive(), "its memory was given away while it was read"
        may_go_on.set()
        taker.join(20)
        remover.join(20)
        assert not remover.is_alive()
        # The arena would clear the memory for the next channel.
        daemon.roster.add("c", lambda index: part("c", Camera(), index))
    assert is_hidden(luma_of(pictures[0]))
    assert daemon.error is None


def test_a_paused_channel_gives_no_picture() -> None:
    with daemon_of([part("a", Camera(), 0)]) as daemon:
        daemon.roster.pause("a")
        with pytest.raises(NotNowError, match="it is paused; resume it first"):
            daemon.runtime.live.snapshot("a")
        daemon.roster.resume("a")
        assert daemon.runtime.live.snapshot("a").jpeg


def test_a_camera_that_sends_nothing_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_FRAME_S", 0.3)
    silent = threading.Event()

    def hold(sequence: int) -> None:
        if silent.is_set():
            time.sleep(1)

    with daemon_of([part("a", Camera(on_read=hold), 0)]) as daemon:
        daemon.wait_for(lambda: len(daemon.frames_of(0)) > 5)
        silent.set()
        time.sleep(0.1)
        with pytest.raises(NotNowError, match="no frame came"):
            daemon.runtime.live.snapshot("a")
        silent.clear()
        seen = len(daemon.frames_of(0))
        daemon.wait_for(lambda: len(daemon.frames_of(0)) > seen + 30)  # nothing still waits for a frame
        assert "snapshot" not in daemon.roster.channels[0].pool.holders()


def test_a_picture_that_is_too_large_for_the_pipe_is_refused() -> None:
    encoder = SimJpeg(size_bytes=2_000_001)
    with (
        daemon_of([part("a", Camera(), 0)], encoder) as daemon,
        pytest.raises(NotNowError, match="2000001 bytes, over 2000000"),
    ):
        daemon.runtime.live.snapshot("a")
    assert daemon.report is not None
    assert daemon.report.snapshots_refused == 1


def test_an_encoder_that_fails_costs_one_picture_and_not_the_run() -> None:
    def fail() -> None:
        raise PlantedError("planted")

    with daemon_of([part("a", Camera(), 0)], SimJpeg(fail)) as daemon:
        with pytest.raises(PlantedError):
            daemon.runtime.live.snapshot("a")
        seen = len(daemon.frames_of(0))
        daemon.wait_for(lambda: len(daemon.frames_of(0)) > seen + 10)
        assert "snapshot" not in daemon.roster.channels[0].pool.holders()
    assert daemon.error is None


class PlantedError(Exception):
    """Nobody expects it."""


@given(st.permutations(["deliver", "close"]), st.booleans())
def test_an_ordered_frame_is_given_back_once_whoever_comes_first(order: list[str], waits: bool) -> None:
    slot = FrameSlot(0, 0, None, np.zeros(1), FrameInfo(0, 1, 0, 0))  # type: ignore[arg-type,var-annotated]
    back: list[object] = []
    wish: FrameOrder[object] = FrameOrder()
    for step in order:
        if step == "deliver":
            wish.deliver(slot, back.append)
            if waits:
                assert (wish.wait(0.0) is slot) == (order[0] == "deliver")
        else:
            wish.close()
    wish.close()
    assert back == [slot]
