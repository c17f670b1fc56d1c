"""Which pictures of events are asked for and kept; frame process, tracker and events are the test's."""

from __future__ import annotations

import base64
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.disks import fill, small_tmpfs
from tests.contract.media_store import T0, S, scan
from zhcedge.analytics.events import EventMachine, EventSettings
from zhcedge.analytics.tracker import Track, Tracker, TrackerSettings, TrackUpdate
from zhcedge.app.event_snapshots import BETTER, CLEARLY, PictureNews, SnapshotKeeper
from zhcedge.config.load import load_text
from zhcedge.config.schema import Config
from zhcedge.core.delivery import Alert
from zhcedge.core.errors import ConfigError, NotNowError, PipelineError, StoreError, ZhcEdgeError
from zhcedge.core.events import Box, EndReason, Event, EventSnapshot, EventType
from zhcedge.core.types import DETECTION_DTYPE, FrameInfo
from zhcedge.pipeline.ring import RingRecord
from zhcedge.pipeline.snapshots import MAX_CROPS
from zhcedge.store.clips import MediaIndex
from zhcedge.store.media_files import SNAPSHOT, StorageLimits, StorageSettings, media_files, snapshots_folder
from zhcedge.store.pictures import Pictured, PictureStore
from zhcedge.store.purging import PurgeableMedia, Selection

PATIENCE_S = 20.0
SIZE = (1000, 500)
HERE: Box = (100.0, 100.0, 200.0, 200.0)
ELSEWHERE: Box = (600.0, 100.0, 700.0, 200.0)
JPEG = b"\xff\xd8picture"


class HandClock:
    """Implements core.ports.Clock; time goes on when the test says so."""

    def __init__(self) -> None:
        self.now_ns = 10**12

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return T0 + self.now_ns

    def is_synced(self) -> bool:
        return True


@dataclass
class Site:
    """A keeper whose frame process, tracker and event machine are the test."""

    storage: Path
    sections: dict[str, object] = field(default_factory=dict)
    channels: dict[str, object] = field(
        default_factory=lambda: {"gate": {"source": {"uri": "clip:walkers"}, "snapshots": {"enabled": True}}}
    )

    def __post_init__(self) -> None:
        base: dict[str, object] = {"storage": {"dir": self.storage, "min_free_mb": 0}}
        config = Config.model_validate({"channels": self.channels, **base, **self.sections})
        self.clock = HandClock()
        self.asked: list[tuple[str, str, object]] = []
        self.fault: ZhcEdgeError | None = None
        self.alerts: list[Alert] = []
        self.sequence = 0
        self.keeper = SnapshotKeeper(config, "boot", self.clock, self._send, lambda: None, self.alerts.append)

    def _send(self, word: str, camera: str, value: object) -> int:
        if self.fault is not None:
            raise self.fault
        self.asked.append((word, camera, value))
        return len(self.asked)

    def see(self, *seen: tuple[int, Box, float], camera: str = "gate", is_quick: bool = False) -> int:
        """One frame with these tracks: id, box, score. Its number. Time goes on by a tenth of a second, or not."""
        self.sequence += 1
        self.clock.now_ns += 0 if is_quick else S // 10
        info = FrameInfo(0, self.sequence, T0 + self.clock.now_ns, 0)
        tracks = tuple(Track(id, 0, box, score, score, info, info) for id, box, score in seen)
        record = RingRecord(info, *SIZE, 0, np.zeros(0, DETECTION_DTYPE))
        self.keeper.seen(camera, record, TrackUpdate(0, tracks, (), ()))
        return self.sequence

    def event(self, type: EventType, id: int = 1, camera: str = "gate") -> None:
        frame = FrameInfo(0, self.sequence, T0, 0)
        after = EventSnapshot(f"{camera}-{id}", camera, "person", 0.5, 0.5, HERE, frame, T0 + id * S)
        self.keeper.event(Event(type, None, after))

    def crops(self, ask: int = -1) -> list[list[float]]:
        value = self.asked[ask][2]
        assert isinstance(value, dict)
        return [list(crop) for crop in value["crops"]]

    def answer(self, sequence: int, whole: bytes = JPEG, *, late_ns: int = 0) -> None:
        """The picture that was asked for last: of this frame, each crop exactly what was asked for."""
        crops = [
            {
                "jpeg": base64.b64encode(whole + b"-crop%d" % number).decode(),
                "rectangle": [left * SIZE[0], top * SIZE[1], (right - left) * SIZE[0], (bottom - top) * SIZE[1]],
            }
            for number, (left, top, right, bottom) in enumerate(self.crops())
        ]
        behind_ns = (self.sequence - sequence) * (S // 10)
        value = {
            "jpeg": base64.b64encode(whole).decode(),
            "sequence": sequence,
            "capture_time_ns": T0 + self.clock.now_ns - behind_ns + late_ns,
            "crops": crops,
        }
        assert self.keeper.answered(len(self.asked), None, value)

    def turns(self, count: int = 3) -> list[PictureNews]:
        return [news for _ in range(count) for news in self.keeper.turn()]

    def news(self) -> list[PictureNews]:
        """Wait for the thread."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not (news := self.keeper.turn()):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        return news

    def wait(self, is_so: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < deadline_s
            self.keeper.turn()
            time.sleep(0.01)

    @property
    def files(self) -> dict[str, bytes]:
        """Content of the files of ours, by what stands behind the time in their names."""
        return {file.path.name.split("Z-", 1)[1]: file.path.read_bytes() for file in media_files(self.storage)}


@contextmanager
def site(storage: Path, **rest: dict[str, object]) -> Iterator[Site]:
    made = Site(storage, **rest)
    made.keeper.start()
    try:
        yield made
    finally:
        made.keeper.close()


# -- asking ------------------------------------------------------------------------------------------------------
def test_a_picture_is_asked_for_when_an_event_begins_and_is_kept(tmp_path: Path) -> None:
    with site(tmp_path) as made:
        made.see((1, HERE, 0.5))
        assert made.asked == []
        made.event(EventType.NEW)
        ((word, camera, _),) = made.asked
        assert (word, camera) == ("snapshot", "gate")
        assert made.crops() == [pytest.approx([0.07, 0.14, 0.23, 0.46])]  # 0.3 of its size around it
        made.answer(made.see((1, HERE, 0.5)))
        assert made.news() == [PictureNews("gate", "gate-1")]
        assert made.files == {"gate-1.jpg": JPEG, "gate-1-crop.jpg": JPEG + b"-crop0"}
    index = MediaIndex(tmp_path)
    assert [(file.kind, file.camera, file.start_ns) for file in index.files()] == [(SNAPSHOT, "gate", T0 + S)] * 2
    index.close()
    assert (made.keeper.asked, made.keeper.written, made.keeper.dropped, made.keeper.lost) == (1, 1, 0, 0)


def test_a_clearly_better_look_is_asked_for_and_replaces_the_picture(tmp_path: Path) -> None:
    with site(tmp_path) as made:
        made.see((1, HERE, 0.5))
        made.event(EventType.NEW)
        made.answer(made.see((1, HERE, 0.5)))
        made.news()
        made.clock.now_ns += 2 * S
        made.see((1, HERE, 0.5 * CLEARLY - 0.01))
        assert len(made.asked) == 1
        made.see((1, HERE, 0.5 * CLEARLY + 0.01))
        assert len(made.asked) == 2
        made.answer(made.see((1, HERE, 0.7)), b"better")
        made.news()
        assert made.files == {"gate-1.jpg": b"better", "gate-1-crop.jpg": b"better-crop0"}
        made.clock.now_ns += 2 * S
        made.see((1, (100.0, 100.0, 250.0, 250.0), 0.7))  # as well seen, and larger
        assert len(made.asked) == 3


def test_a_picture_that_turns_out_worse_does_not_replace_the_kept_one(tmp_path: Path) -> None:
    with site(tmp_path) as made:
        made.see((1, HERE, 0.5))
        made.event(EventType.NEW)
        made.answer(made.see((1, HERE, 0.5)))
        made.news()
        made.clock.now_ns += 2 * S
        made.see((1, HERE, 0.9))
        made.answer(made.see((1, HERE, 0.5 * BETTER - 0.01)), b"worse")
        made.turns()
        made.keeper.close()
        assert made.files["gate-1.jpg"] == JPEG


def test_a_camera_is_asked_no_more_often_than_its_interval_and_one_at_a_time(tmp_path: Path) -> None:
    channel = {"source": {"uri": "clip:walkers"}, "snapshots": {"enabled": True, "min_interval_s": 5.0}}
    with site(tmp_path, channels={"gate": channel, "yard": channel}) as made:
        made.see((1, HERE, 0.5))
        made.event(EventType.NEW)
        made.see((1, HERE, 0.5), camera="yard")
        made.event(EventType.NEW, camera="yard")
        made.see((1, HERE, 0.9))
        assert len(made.asked) == 1  # the first one is not answered
        assert made.keeper.answered(1, NotNowError("busy"))
        made.see((1, HERE, 0.5), camera="yard")
        assert [camera for _, camera, _ in made.asked] == ["gate", "yard"]
        assert made.keeper.answered(2, NotNowError("busy"))
        for _ in range(48):
            made.see((1, HERE, 0.9))
        assert len(made.asked) == 2
        for _ in range(4):
            made.see((1, HERE, 0.9))
        assert len(made.asked) == 3
        assert made.keeper.dropped == 2


def test_one_picture_counts_for_every_event_that_it_shows(tmp_path: Path) -> None:
    with site(tmp_path) as made:
        made.see((1, HERE, 0.5), (2, ELSEWHERE, 0.6), (3, HERE, 0.7))
        made.clock.now_ns += S
        for number in (1, 2):
            made.event(EventType.NEW, number)
        assert made.keeper.answered(1, NotNowError("busy"))
        made.clock.now_ns += 2 * S
        made.see((1, HERE, 0.5), (2, ELSEWHERE, 0.6), (3, HERE, 0.7))  # 3 is no event
        assert len(made.crops()) == 2
        made.answer(made.see((1, HERE, 0.5), (2, ELSEWHERE, 0.6)))
        made.wait(lambda: made.keeper.written == 2)
    assert set(made.files) == {"gate-1.jpg", "gate-1-crop.jpg", "gate-2.jpg", "gate-2-crop.jpg"}


def test_the_picture_belongs_to_the_frame_that_it_shows_not_to_the_latest_one(tmp_path: Path) -> None:
    with site(tmp_path) as made:
        made.see((1, HERE, 0.5), (2, ELSEWHERE, 0.5))
        made.event(EventType.NEW, 1)
        assert made.keeper.answered(1, NotNowError("busy"))
        made.event(EventType.NEW, 2)
        made.clock.now_ns += 2 * S
        made.see((1, HERE, 0.5), (2, ELSEWHERE, 0.5))
        shown = made.see((2, ELSEWHERE, 0.5))
        made.see((1, HERE, 0.9), (2, ELSEWHERE, 0.5))
        made.answer(shown)
        made.wait(lambda: made.keeper.written == 1)
    assert set(made.files) == {"gate-2.jpg", "gate-2-crop.jpg"}


def test_an_answer_that_overtakes_its_frames_record_waits_for_it(tmp_path: Path) -> None:
    with site(tmp_path) as made:
        made.see((1, HERE, 0.5))
        made.event(EventType.NEW)
        made.answer(made.sequence + 1)
        assert made.keeper.turn() == []
        made.see((1, ELSEWHERE, 0.5))  # the next turn reads the ring first
        made.turns()
    assert made.files == {}  # not where it was a frame before


def test_a_frame_that_nobody_detected_in_shows_what_was_there_just_before(tmp_path: Path) -> None:
    with site(tmp_path) as made:
        made.see((1, HERE, 0.5))
        made.event(EventType.NEW)
        made.answer(made.sequence + 3, late_ns=S)
        made.turns()
        assert made.keeper.written == 0  # a second ago is not just before
        made.clock.now_ns += 2 * S
        made.see((1, HERE, 0.5))
        made.answer(made.sequence + 1, late_ns=0)
        assert made.news() == [PictureNews("gate", "gate-1")]


def test_an_object_that_has_left_its_crop_keeps_no_picture(tmp_path: Path) -> None:
    with site(tmp_path) as made:
        made.see((1, HERE, 0.5))
        made.event(EventType.NEW)
        made.answer(made.see((1, ELSEWHERE, 0.9)))
        made.turns()
    assert made.files == {}


def test_no_more_crops_are_asked_for_than_are_given_and_the_neediest_come_first(tmp_path: Path) -> None:
    with site(tmp_path) as made:
        count = MAX_CROPS + 3
        made.fault = PipelineError("the frame path is draining")
        for number in range(1, count + 1):
            made.event(EventType.NEW, number)
        tracks = [(number, HERE, 0.1 * number / count) for number in range(1, count + 1)]
        made.see(*tracks)
        assert made.asked == []
        made.fault = None
        made.clock.now_ns += 2 * S
        made.see(*tracks)
        assert len(made.crops()) == MAX_CROPS
        made.answer(made.see(*tracks))
        made.wait(lambda: made.keeper.written == MAX_CROPS)
        made.clock.now_ns += 2 * S
        made.see(*tracks)
        made.answer(made.see(*tracks))
        made.wait(lambda: made.keeper.written == count)
    assert made.keeper.dropped == 0


def test_a_frame_process_that_says_nothing_is_asked_again(tmp_path: Path) -> None:
    with site(tmp_path) as made:
        made.see((1, HERE, 0.5))
        made.event(EventType.NEW)
        made.clock.now_ns += 16 * S
        made.turns()
        assert made.keeper.dropped == 1
        made.clock.now_ns += 2 * S
        made.see((1, HERE, 0.5))
        assert len(made.asked) == 2
        assert not made.keeper.answered(1, None, {})


def test_a_new_frame_process_counts_its_frames_anew(tmp_path: Path) -> None:
    with site(tmp_path) as made:
        made.sequence = 1000
        made.see((1, HERE, 0.5))
        made.event(EventType.NEW)
        made.keeper.frame_process_ended()
        made.event(EventType.END)
        made.sequence, made.clock.now_ns = 0, made.clock.now_ns + 9 * S
        made.see((2, HERE, 0.5))
        made.event(EventType.NEW, 2)
        made.answer(made.see((2, HERE, 0.5)))
        assert made.news() == [PictureNews("gate", "gate-2")]


def test_cameras_without_pictures_are_never_asked(tmp_path: Path) -> None:
    with site(tmp_path, channels={"gate": {"source": {"uri": "clip:walkers"}}}) as made:
        made.see((1, HERE, 0.5))
        made.event(EventType.NEW)
        made.see((1, HERE, 0.9))
        made.event(EventType.END)
    assert made.asked == []


def test_pictures_need_a_folder() -> None:
    channels = {"gate": {"source": {"uri": "clip:walkers"}, "snapshots": {"enabled": True}}}
    config = Config.model_validate({"channels": channels})
    with pytest.raises(ConfigError, match="snapshots need a folder"):
        SnapshotKeeper(config, "boot", HandClock(), lambda *_: 0, lambda: None, lambda alert: None)


@pytest.mark.parametrize("value", ["min_interval_s: 0.5", "crop_margin: 1.5", "crop_margin: .nan", "often: true"])
def test_settings_out_of_range_are_refused(value: str) -> None:
    text = f"channels: {{gate: {{source: {{uri: 'clip:walkers'}}, snapshots: {{{value}}}}}}}"
    with pytest.raises(ConfigError):
        load_text(text, "test.yaml")


# -- the end -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("is_shown", [False, True])
def test_the_best_picture_is_shown_at_the_end_and_only_where_that_is_wanted(tmp_path: Path, is_shown: bool) -> None:
    with site(tmp_path, sections={"mqtt": {"snapshots": is_shown}}) as made:
        made.see((1, HERE, 0.5))
        made.event(EventType.NEW)
        made.answer(made.see((1, HERE, 0.5)))
        made.news()
        made.event(EventType.END)
        made.keeper.close()
        assert made.turns() == ([PictureNews("gate", "gate-1", JPEG)] if is_shown else [])


def test_a_picture_that_is_on_its_way_when_the_event_ends_still_counts(tmp_path: Path) -> None:
    with site(tmp_path, sections={"mqtt": {"snapshots": True}}) as made:
        made.see((1, HERE, 0.5))
        made.event(EventType.NEW)
        shown = made.see((1, HERE, 0.5))
        made.event(EventType.END)
        made.see()
        made.answer(shown)
        made.turns()
        made.keeper.close()
        assert made.turns(1) == [PictureNews("gate", "gate-1"), PictureNews("gate", "gate-1", JPEG)]


def test_what_was_purged_is_not_shown(tmp_path: Path) -> None:
    with site(tmp_path, sections={"mqtt": {"snapshots": True}}) as made:
        made.see((1, HERE, 0.5))
        made.event(EventType.NEW)
        made.answer(made.see((1, HERE, 0.5)))
        made.news()
        index = MediaIndex(tmp_path)
        assert PurgeableMedia(tmp_path, index).purge(Selection()).count == 2
        assert index.files() == []
        index.close()
        made.event(EventType.END)
        made.keeper.close()
        assert made.turns() == []
        assert made.files == {}


STEPS = st.sampled_from(["new", "see", "end", "answer", "refuse", "crash"])


@given(st.lists(st.tuples(st.integers(0, 3), STEPS), max_size=60))
def test_whatever_happens_nothing_is_remembered_of_events_that_have_ended(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str]]
) -> None:
    with site(tmp_path_factory.mktemp("media")) as made:
        there: set[int] = set()
        numbers = 0
        for number, step in steps:
            made.clock.now_ns += S
            if step == "new":
                numbers += 1
                there.add(numbers)
                made.event(EventType.NEW, numbers)
            elif step == "end" and there:
                made.event(EventType.END, there.pop())
            elif step == "answer" and made.keeper._asked is not None:
                made.answer(made.sequence)
            elif step == "refuse":
                made.keeper.answered(len(made.asked), NotNowError("busy"))
            elif step == "crash":
                made.keeper.frame_process_ended()
                while there:
                    made.event(EventType.END, there.pop())
            made.see(*((id, HERE, 0.2 + 0.2 * number) for id in there))
            made.turns(1)
        made.keeper.frame_process_ended()
        while there:
            made.event(EventType.END, there.pop())
        assert made.keeper._open == {}


# -- the disk ----------------------------------------------------------------------------------------------------
def test_a_full_disk_drops_the_picture_tells_it_once_and_when_it_is_over(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path) as disk, site(disk / "media") as made:
        filler = fill(disk)
        made.see((1, HERE, 0.5))
        made.event(EventType.NEW)
        for count in (1, 2):
            made.answer(made.see((1, HERE, 0.5)), b"x" * 5000)
            made.wait(lambda count=count: made.keeper.lost == count)  # type: ignore[misc]
            made.turns()
            made.clock.now_ns += 2 * S
            made.see((1, HERE, 0.5))  # asked for again
        assert [(alert.code, alert.is_over) for alert in made.alerts] == [("snapshots-lost", False)]
        assert made.files == {}
        filler.unlink()
        made.answer(made.see((1, HERE, 0.5)))
        assert made.news() == [PictureNews("gate", "gate-1")]
        assert [alert.is_over for alert in made.alerts] == [False, True]


PICTURED = Pictured("boot/gate-7", "gate-7", "gate", T0)


def test_what_the_disk_must_keep_free_is_left(tmp_path: Path) -> None:
    settings = StorageSettings(tmp_path, StorageLimits(10**9, 10**9, min_free_bytes=1000))
    store = PictureStore(settings, free=lambda folder: 1500)
    with pytest.raises(StoreError, match="min_free_mb"):
        store.keep(PICTURED, b"x" * 300, b"x" * 300)
    assert list(media_files(tmp_path)) == []
    store.keep(PICTURED, b"x" * 300, b"x" * 200)
    assert len(list(media_files(tmp_path))) == 2
    store.close()


def test_a_scan_takes_nothing_away_from_who_is_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = MediaIndex(tmp_path)
    store = PictureStore(StorageSettings(tmp_path, StorageLimits(10**9, 10**9, 0)))
    reports = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: reports.append(scan(tmp_path, index)))
    store.keep(PICTURED, JPEG, JPEG)
    assert [report.being_written for report in reports] == [1, 2]
    assert store.whole(PICTURED) == JPEG
    store.close()
    index.close()


def test_half_a_picture_of_a_killed_process_goes_and_one_that_is_being_written_stays(tmp_path: Path) -> None:
    folder = snapshots_folder(tmp_path, "gate")
    folder.mkdir(parents=True)
    store = PictureStore(StorageSettings(tmp_path, StorageLimits(10**9, 10**9, 0)))
    left = store.whole_path(PICTURED).with_suffix(".jpg.part")
    written = store.crop_path(PICTURED).with_suffix(".jpg.part")
    left.write_bytes(JPEG)
    index = MediaIndex(tmp_path)
    with written.open("wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.write(JPEG)
        report = scan(tmp_path, index)
        assert (report.removed, report.being_written) == (1, 1)
        assert (left.exists(), written.exists()) == (False, True)
    assert index.files() == []
    index.close()


def test_a_purge_takes_what_is_being_written_too(tmp_path: Path) -> None:
    folder = snapshots_folder(tmp_path, "gate")
    folder.mkdir(parents=True)
    store = PictureStore(StorageSettings(tmp_path, StorageLimits(10**9, 10**9, 0)))
    store.whole_path(PICTURED).with_suffix(".jpg.part").write_bytes(JPEG)
    index = MediaIndex(tmp_path)
    assert PurgeableMedia(tmp_path, index).purge(Selection()).count == 1
    index.close()
    assert list(folder.iterdir()) == []


# -- what events say ---------------------------------------------------------------------------------------------
def test_an_event_says_that_there_is_a_picture_from_its_next_message_on() -> None:
    tracker = Tracker(TrackerSettings(confirm_frames=1))
    machine = EventMachine(EventSettings("gate", ("person",)))

    def step(sequence: int) -> list[Event]:
        info = FrameInfo(0, sequence, T0 + sequence * S // 10, 0, sequence / 10)
        return machine.step(tracker.update(np.array([(HERE, 0.5, 0)], DETECTION_DTYPE), info))

    (new,) = step(0)
    assert not new.after.has_snapshot
    machine.note_snapshot("gate-99")
    assert [event for sequence in range(1, 15) for event in step(sequence)] == []
    machine.note_snapshot(new.after.id)
    (update,) = (event for sequence in range(15, 40) for event in step(sequence))  # and it is told once
    assert (update.type, update.after.has_snapshot) == (EventType.UPDATE, True)
    (end,) = machine.close(EndReason.SHUTDOWN)
    assert end.after.has_snapshot
    machine.note_snapshot(new.after.id)  # too late, and no error
