"""What the control process asks for, remembers and tells about clips; the frame process's side is the test's."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.contract.clip_scene import Scene, make_video
from tests.contract.media_store import T0, S
from zhcedge.app.clips import ClipKeeper, ClipNews
from zhcedge.app.frame_clips import clip_message
from zhcedge.app.storage_settings import storage_settings
from zhcedge.config.load import load_text
from zhcedge.config.schema import Config
from zhcedge.core.errors import ConfigError, MediaError, PipelineError, UsageError, ZhcEdgeError
from zhcedge.core.events import Event, EventSnapshot, EventType
from zhcedge.core.types import FrameInfo
from zhcedge.service.clock import SystemClock
from zhcedge.store.clips import MediaIndex
from zhcedge.store.media_files import clips_folder

PATIENCE_S = 20.0


class Desk:
    """A keeper, and what it asks for. A context manager."""

    def __init__(self, storage: Path, boot_id: str = "boot", **channels: object) -> None:
        channels = channels or {"gate": {"source": {"uri": "gate.mp4"}, "clips": {"enabled": True}}}
        config = Config.model_validate({"channels": channels, "storage": {"dir": storage, "min_free_mb": 0}})
        self.storage = storage
        self.asked: list[tuple[str, str, object]] = []
        self.fault: ZhcEdgeError | None = None
        self.keeper = ClipKeeper(config, boot_id, SystemClock(), self._send, lambda: None)

    def _send(self, word: str, camera: str, value: object) -> int:
        if self.fault is not None:
            raise self.fault
        self.asked.append((word, camera, value))
        return len(self.asked)

    def __enter__(self) -> Desk:
        self.keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.keeper.close()

    def event(self, type: EventType, id: str = "1", camera: str = "gate") -> None:
        end_ns = T0 + 9 * S if type is EventType.END else None
        frame = FrameInfo(0, 0, T0, 0)
        after = EventSnapshot(id, camera, "person", 0.5, 0.5, (0.0, 0.0, 1.0, 1.0), frame, T0, end_ns)
        self.keeper.event(Event(type, None, after))

    def news(self) -> ClipNews:
        """The next that comes, and only that."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not (news := self.keeper.turn()):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        (one,) = news
        return one


def test_a_clip_is_asked_for_when_an_event_begins_and_when_it_ends(tmp_path: Path) -> None:
    with Desk(tmp_path) as desk:
        for type in (EventType.NEW, EventType.UPDATE, EventType.END):
            desk.event(type)
    assert desk.asked == [
        ("clip", "gate", {"key": "boot/1", "start_ns": T0, "end_ns": None}),
        ("clip", "gate", {"key": "boot/1", "start_ns": T0, "end_ns": T0 + 9 * S}),
    ]


def test_a_clip_that_comes_is_indexed_and_told(tmp_path: Path) -> None:
    storage = tmp_path / "media"
    with Scene(make_video(tmp_path / "video.mp4", 6), clips_folder(storage, "gate")) as scene:
        scene.play(45)
        scene.end("boot/1", 40, 44)
    clip = scene.clip()
    with Desk(storage) as desk:
        desk.event(EventType.NEW)
        desk.keeper.take(clip_message(clip))
        news = desk.news()
    (part,) = clip.parts
    assert (news.camera, news.event_id, news.notes) == ("gate", "1", clip.notes)
    (range,) = news.ranges
    assert (range.path, range.start_ns, range.from_s, range.to_s) == (part.path, part.start_ns, part.from_s, part.to_s)
    index = MediaIndex(storage)
    assert [use.event for _, use in index.clip_of("boot/1")] == ["boot/1"]
    assert index.wanted() == []
    index.close()


def test_a_clip_that_was_deleted_before_it_is_indexed_is_none(tmp_path: Path) -> None:
    part = {"path": str(tmp_path / "gone.mp4"), "bytes": 9, "seconds": 2.0, "start_ns": T0, "from_s": 0.5, "to_s": 1.5}
    with Desk(tmp_path) as desk:
        desk.keeper.take({"camera": "gate", "key": "boot/1", "notes": [], "parts": [part]})
        assert desk.news() == ClipNews("gate", "1", (), ("it was deleted",))


def test_only_cameras_that_record_are_asked(tmp_path: Path) -> None:
    channels = {
        "off": {"source": {"uri": "gate.mp4"}},
        "pattern": {"source": {"uri": "pattern:boxes"}, "clips": {"enabled": True}},
        "folder": {"source": {"uri": str(tmp_path)}, "clips": {"enabled": True}},
        "camera": {"source": {"uri": "rtsp://camera/1"}, "clips": {"enabled": True}},
    }
    with Desk(tmp_path / "media", **channels) as desk:
        for name in (*channels, "nobody"):
            desk.event(EventType.NEW, camera=name)
            desk.event(EventType.END, camera=name)
        obstacles = {name: desk.keeper.obstacle(name) for name in channels}
    assert [camera for _, camera, _ in desk.asked] == ["camera", "camera"]
    assert obstacles == {
        "off": "clips are off",
        "pattern": "a source of kind pattern has no compressed packets",
        "folder": "a source of kind image has no compressed packets",
        "camera": "",
    }


def test_a_source_that_cannot_be_recorded_is_asked_once(tmp_path: Path) -> None:
    with Desk(tmp_path) as desk:
        desk.event(EventType.NEW)
        assert desk.keeper.answered(1, MediaError("MP4 takes no vp8"))
        assert desk.news() == ClipNews("gate", "1", (), ("MP4 takes no vp8",))
        assert desk.keeper.obstacle("gate") == "MP4 takes no vp8"
        desk.event(EventType.END)
        desk.event(EventType.NEW, "2")
        assert len(desk.asked) == 1
        desk.keeper.frame_process_ended()
        assert desk.keeper.obstacle("gate") == ""
        assert not desk.keeper.answered(77, None)


def test_a_refusal_of_the_moment_is_not_remembered(tmp_path: Path) -> None:
    with Desk(tmp_path) as desk:
        desk.event(EventType.NEW)
        desk.keeper.answered(1, UsageError("the run is not active"))
        assert desk.news().notes == ("the run is not active",)
        assert desk.keeper.obstacle("gate") == ""
        desk.fault = PipelineError("the frame path is failed")
        desk.event(EventType.NEW, "2")
        assert desk.news() == ClipNews("gate", "2", (), ("the frame path is failed",))


def test_what_nobody_answers_is_told_when_the_frame_process_has_ended(tmp_path: Path) -> None:
    with Desk(tmp_path) as desk:
        desk.event(EventType.NEW)
        desk.keeper.answered(1, None)
        desk.fault = PipelineError("the frame path is failed")
        desk.event(EventType.END)
        assert desk.keeper.turn() == []
        desk.keeper.frame_process_ended()
        assert desk.news() == ClipNews("gate", "1", (), ("the recording was lost",))


def test_what_an_earlier_run_wanted_is_told_under_its_whole_name(tmp_path: Path) -> None:
    with Desk(tmp_path) as desk:
        desk.event(EventType.NEW)
    with Desk(tmp_path, "later") as again:
        assert again.news().event_id == "boot/1"
    index = MediaIndex(tmp_path)
    assert index.wanted() == []
    index.close()


def test_a_folder_that_cannot_be_used_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with Desk(tmp_path / "file" / "media") as desk:
        desk.event(EventType.NEW)
        desk.event(EventType.END)
    assert len(desk.asked) == 2


def test_what_cannot_be_noted_is_noted_when_the_folder_can_be_used(tmp_path: Path) -> None:
    storage = tmp_path / "media"
    with Desk(storage) as desk:
        desk.event(EventType.NEW)  # an earlier run's
    storage.rename(tmp_path / "kept")
    storage.write_text("x")
    with Desk(storage, "later") as desk:
        for key in ("later/1", "later/2"):
            desk.keeper.take({"camera": "gate", "key": key, "notes": ["no key frame came"], "parts": []})
        time.sleep(0.5)  # a while in which nothing can be done
        storage.unlink()
        (tmp_path / "kept").rename(storage)
        desk.keeper.take({"camera": "gate", "key": "later/3", "notes": ["no key frame came"], "parts": []})
        told: list[ClipNews] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while len(told) < 4:
            assert time.monotonic() < deadline_s
            told += desk.keeper.turn()
    assert [news.event_id for news in told] == ["boot/1", "1", "2", "3"]


def test_a_folder_that_was_deleted_gets_an_index_again(tmp_path: Path) -> None:
    storage, video = tmp_path / "media", make_video(tmp_path / "video.mp4", 6)
    with Desk(storage) as desk:
        desk.keeper.take({"camera": "gate", "key": "boot/1", "notes": ["no key frame came"], "parts": []})
        assert desk.news().ranges == ()  # so the index is in use
        storage.rename(tmp_path / "deleted")  # not deleted, as SQLite may be about to make a file in it
        with Scene(video, clips_folder(storage, "gate")) as scene:
            scene.play(45)
            scene.end("boot/2", 40, 44)
        desk.event(EventType.NEW, "2")
        desk.keeper.take(clip_message(scene.clip()))
        (range,) = desk.news().ranges
        index = MediaIndex(storage)
        assert [file.path for file, _ in index.clip_of("boot/2")] == [range.path]
        index.close()


def test_clips_need_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    channels = {"gate": {"source": {"uri": "gate.mp4"}, "clips": {"enabled": True}}}
    config = Config.model_validate({"channels": channels})
    with pytest.raises(ConfigError, match=r"storage\.dir"):
        ClipKeeper(config, "boot", SystemClock(), lambda word, camera, value: 0, lambda: None)
    settings = storage_settings(config, {"STATE_DIRECTORY": f"{tmp_path}:/other"})
    assert settings is not None
    assert settings.dir == tmp_path / "media"
    assert clips_folder(settings.dir, "gate") == tmp_path / "media/clips/gate"


@pytest.mark.parametrize(
    ("channel", "told"),
    [
        ("clips: {enabled: true}\n    masks: [[[0, 0], [1, 0], [1, 1]]]", "masked"),
        ("clips: {before_s: 10, max_s: 5}", "larger than before_s"),
        ("clips: {before_s: -1}", "before_s"),
    ],
)
def test_clips_that_make_no_sense_are_refused(channel: str, told: str) -> None:
    text = f"channels:\n  gate:\n    source: {{uri: gate.mp4}}\n    {channel}\n"
    with pytest.raises(ConfigError, match=told):
        load_text(text, "zhc-edge.yaml")


def test_a_masked_camera_may_say_that_it_records_nothing() -> None:
    text = "channels: {gate: {source: {uri: a.mp4}, clips: {enabled: false}, masks: [[[0, 0], [1, 0], [1, 1]]]}}"
    assert load_text(text, "zhc-edge.yaml").config.channels["gate"].masks


def test_the_folder_of_clips_begins_at_the_configuration(tmp_path: Path) -> None:
    text = "channels: {gate: {source: {uri: a.mp4}}}\nstorage: {dir: media}"
    assert load_text(text, str(tmp_path / "zhc-edge.yaml")).config.storage.dir == tmp_path / "media"
