"""What is asked over the control pipe of a real frame process: channels that come, go and change, and pictures."""

from __future__ import annotations

import base64
import io
import itertools
import os
import select
import selectors
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pytest

from zhcedge.app.event_path import EventPath
from zhcedge.app.interpreter import command_for
from zhcedge.config.load import dump
from zhcedge.config.schema import Config
from zhcedge.core.events import EndReason, Event, EventType
from zhcedge.models.bundle import load_bundle
from zhcedge.pipeline.ring import RingRecord
from zhcedge.pipeline.segment import Segment
from zhcedge.service.clock import SystemClock
from zhcedge.service.frame_process import FrameProcess, eventfd

PATIENCE_S = 60.0
CLIP = {"uri": "clip:walkers", "loop": True, "realtime": True}


class Frame:
    """The test in the control process's place."""

    def __init__(self, channels: dict[str, object], **sections: object) -> None:
        config = Config.model_validate(
            {"channels": channels, "mqtt": {"enabled": False}, "engine": {"threads": 1}, **sections}
        )
        self._fds = Segment.create_fd(), eventfd()
        self.segment = Segment(self._fds[0])
        first: dict[str, object] = {"config": dump(config), "log_level": "ERROR"}
        self.process = FrameProcess(command_for("zhcedge.app.frame"), *self._fds, first)
        self.messages: list[dict[str, object]] = []
        self.frames: dict[int, int] = {}
        self.records: list[RingRecord] = []
        self.events: list[Event] = []
        facts = load_bundle(config.model.bundle).facts
        recorder = self.segment.control_recorder
        self._event_path = EventPath(config, facts, recorder, SystemClock(), self.events.extend)
        self._numbers = itertools.count(1)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.process.fileno(), selectors.EVENT_READ)

    def close(self) -> None:
        self.process.close()
        self._selector.close()
        for fd in self._fds:
            os.close(fd)

    def turn(self) -> None:
        if self._selector.select(0.02):
            messages, is_closed = self.process.messages()
            self.messages += messages
            assert not is_closed, str(self.messages[-3:])
        for record in self.segment.ring.drain():
            self.records.append(record)
            if self._event_path.knows(record):
                self._event_path.handle(record)
            if not record.is_end:
                self.frames[record.info.channel] = self.frames.get(record.info.channel, 0) + 1

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < deadline, str(self.messages[-5:])
            self.turn()

    def ask(self, word: str, name: str, value: object = None) -> dict[str, object]:
        number = next(self._numbers)
        self.process.command(number, word, name, value)

        def answers() -> list[dict[str, object]]:
            return [m for m in self.messages if number in (m.get("done"), m.get("refused"))]

        self.wait_for(lambda: bool(answers()))
        return answers()[0]

    def index_of(self, name: str) -> int:
        return int(str([m["index"] for m in self.messages if m.get("channel") == name][-1]))

    def gain(self, channel: int, frames: int) -> None:
        """Wait until the channel has given so many frames more."""
        goal = self.frames.get(channel, 0) + frames
        self.wait_for(lambda: self.frames.get(channel, 0) >= goal)

    def snapshot(self, name: str) -> npt.NDArray[np.uint8]:
        """The picture, decoded to RGB [height, width, 3]."""
        answer = self.ask("snapshot", name)
        value = answer.get("value")
        assert isinstance(value, dict), str(answer)
        assert value["sequence"] >= 0
        assert abs(value["capture_time_ns"] - time.time_ns()) < PATIENCE_S * 1e9
        with av.open(io.BytesIO(base64.b64decode(value["jpeg"], validate=True)), format="jpeg_pipe") as picture:
            decoded: npt.NDArray[np.uint8] = next(picture.decode(video=0)).to_ndarray(format="rgb24")
        return decoded

    def finish(self) -> dict[str, object]:
        """Stop the process; its report."""
        self.process.request_stop()
        is_closed = False
        while not is_closed:
            self._selector.select(PATIENCE_S)
            messages, is_closed = self.process.messages()
            self.messages += messages
        report = next(message["report"] for message in self.messages if "report" in message)
        assert isinstance(report, dict)
        return report

    @property
    def rss_mib(self) -> float:
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20

    @property
    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    @property
    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))


@pytest.fixture
def frame() -> Iterator[Frame]:
    made = Frame({"first": {"source": CLIP}})
    try:
        made.wait_for(lambda: {"phase": "active"} in made.messages)
        yield made
    finally:
        made.close()


def test_a_channel_comes_pauses_and_goes_while_the_first_one_runs_on(frame: Frame) -> None:
    assert "done" in frame.ask("add", "second", {"source": CLIP})
    second = frame.index_of("second")
    frame.gain(second, 5)
    assert "done" in frame.ask("pause", "second")
    frame.wait_for(lambda: any(m.get("state") == "paused" for m in frame.messages))
    frame.gain(0, 10)
    paused = frame.frames[second]
    frame.gain(0, 10)
    assert frame.frames[second] == paused
    assert "done" in frame.ask("resume", "second")
    frame.gain(second, 5)
    assert "done" in frame.ask("remove", "second")
    frame.gain(0, 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "name", "value", "code", "part"),
    [
        ("add", "first", {"source": CLIP}, 2, "already"),
        ("add", "x", {"source": {"uri": "/nowhere.mp4"}}, 66, "no such file"),
        ("add", "x", {"source": {"uri": "clip:walkers", "fps": -1}}, 78, "greater than 0"),
        ("add", "x", None, 78, ""),
        ("remove", "nobody", None, 2, "name one of first"),
        ("dance", "first", None, 2, "no command 'dance'"),
        ("detect", "first", "ON", 2, "neither true nor false"),
        ("detect", "nobody", True, 2, "name one of first"),
        ("fps", "first", "5", 2, "no number"),
        ("fps", "first", -1, 2, "no frame rate"),
        ("snapshot", "nobody", None, 2, "name one of first"),
    ],
)
def test_what_can_not_be_done_is_refused_with_its_reason_and_changes_nothing(
    frame: Frame, word: str, name: str, value: object, code: int, part: str
) -> None:
    answer = frame.ask(word, name, value)
    error = answer["error"]
    assert isinstance(error, dict)
    assert error["code"] == code
    assert part in f"{error['what']} {error['fix']}"
    frame.gain(0, 5)


@pytest.mark.slow
def test_coming_and_going_for_ever_takes_no_more_memory_files_or_threads(frame: Frame) -> None:
    rounds = int(os.environ.get("ZHC_CHANNEL_ROUNDS", "100"))

    def cycle() -> None:
        assert "done" in frame.ask("add", "second", {"source": CLIP})
        frame.gain(frame.index_of("second"), 2)
        assert "done" in frame.ask("remove", "second")

    files = threads = 0
    for _ in range(20):  # a decoder's threads come and go with its camera
        cycle()
        files, threads = max(files, frame.open_files), max(threads, frame.threads)
    rss_mib = frame.rss_mib
    for _ in range(rounds):
        cycle()
    grown_mib = frame.rss_mib - rss_mib
    frame.wait_for(lambda: frame.threads <= threads and frame.open_files <= files)
    assert grown_mib < 16 + 0.02 * rounds, f"{grown_mib:.1f} MiB over {rounds} rounds"


def test_detection_off_ends_events_and_on_begins_new_ones(frame: Frame) -> None:
    def count(kind: EventType) -> int:
        return sum(event.type is kind for event in frame.events)

    frame.wait_for(lambda: count(EventType.NEW) > 0)
    assert frame.ask("detect", "first", False)["value"] is False
    frame.wait_for(lambda: frame.records[-1].is_unseen)
    frame.gain(0, 10)
    assert count(EventType.NEW) == count(EventType.END)
    assert frame.events[-1].end_reason is EndReason.DETECTION_OFF
    off = len(frame.events)
    frame.gain(0, 10)
    assert len(frame.events) == off
    before = {event.after.id for event in frame.events}
    assert frame.ask("detect", "first", True)["value"] is True
    frame.wait_for(lambda: len(frame.events) > off)
    assert frame.events[off].type is EventType.NEW
    assert frame.events[off].after.id not in before


def test_the_wanted_rate_leaves_frames_out_evenly(frame: Frame) -> None:
    assert frame.ask("fps", "first", 2)["value"] == 2
    frame.gain(0, 2)
    since = len(frame.records)
    frame.gain(0, 8)
    numbers = [record.info.sequence for record in frame.records[since:]]
    steps = [later - earlier for earlier, later in itertools.pairwise(numbers)]
    # The clip has 10 frames a second. A step may be long on a busy machine, and one before it a frame too short.
    assert sorted(steps)[len(steps) // 2] == 5
    assert min(steps) >= 4
    assert "done" in frame.ask("fps", "first", 0)
    frame.wait_for(lambda: frame.records[-1].info.sequence - frame.records[-2].info.sequence == 1)
    assert "refused" in frame.ask("fps", "first", 1e9)


@pytest.mark.slow
def test_a_snapshot_is_the_picture_with_its_mask_and_costs_the_promise_nothing() -> None:
    # The left third is hidden. No channel has a sink, so no lane draws.
    channel = {"source": CLIP, "masks": [[[0.0, 0.0], [0.33, 0.0], [0.33, 1.0], [0.0, 1.0]]]}
    frame = Frame({"first": channel})
    try:
        frame.wait_for(lambda: {"phase": "active"} in frame.messages)
        picture = frame.snapshot("first")
        assert picture.shape == (576, 768, 3)
        hidden = picture[:, : round(768 * 0.33) - 16]
        assert np.median(hidden) < 8
        assert (hidden > 32).mean() < 0.1, "boxes may be drawn on top, and nothing else"
        assert np.median(picture[:, round(768 * 0.33) + 16 :]) > 40
        assert "busy" in str(frame.ask("snapshot", "first"))
        assert "done" in frame.ask("pause", "first")
        time.sleep(1)
        assert "it is paused" in str(frame.ask("snapshot", "first"))
        report = frame.finish()
    finally:
        frame.close()
    ledger = report["ledger"]
    assert isinstance(ledger, dict)
    assert ledger["verdict"] == "pass", str(ledger)
    assert report["snapshots"] == {"taken": 1, "refused": 1}


def test_a_frame_process_ends_although_its_control_process_died_with_words_unread() -> None:
    frame = Frame({"gate": {"source": CLIP}})
    try:
        frame.wait_for(lambda: {"phase": "active"} in frame.messages)
        assert select.select([frame.process.fileno()], [], [], PATIENCE_S)[0]
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, frame.process.fileno())  # closes our end: the other one is reset
        os.close(nothing)
        assert frame.process.wait(PATIENCE_S) == 0
    finally:
        frame.close()


@pytest.mark.slow
def test_snapshots_for_ever_take_no_more_memory_files_or_threads() -> None:
    count = int(os.environ.get("ZHC_SNAPSHOTS", "100"))
    names = [f"c{number}" for number in range(10)]  # a channel gives one a second
    frame = Frame({name: {"source": CLIP} for name in names})
    try:
        frame.wait_for(lambda: {"phase": "active"} in frame.messages)

        def take(pictures: int) -> None:
            for number in range(pictures):
                name = names[number % len(names)]
                frame.wait_for(lambda name=name: "done" in frame.ask("snapshot", name))  # type: ignore[misc]

        for name in names:  # the next frame comes sooner when nobody has to be looked for in it
            assert "done" in frame.ask("detect", name, False)
        files = threads = 0
        for _ in range(20):  # FFmpeg's threads and the pools of the first ones are no growth
            take(1)
            files, threads = max(files, frame.open_files), max(threads, frame.threads)
        rss_mib = frame.rss_mib
        take(count)
        grown_mib = frame.rss_mib - rss_mib
        frame.wait_for(lambda: frame.threads <= threads and frame.open_files <= files)
        assert grown_mib < 8, f"{grown_mib:.1f} MiB over {count} pictures"
        report = frame.finish()
    finally:
        frame.close()
    ledger = report["ledger"]
    assert isinstance(ledger, dict)
    assert ledger["verdict"] == "pass", str(ledger)
