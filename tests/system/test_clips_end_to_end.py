"""Clips of a real camera through a real frame process: from an event to a file, and what happens to it afterwards."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import pytest

from tests.contract.clip_scene import Scene, assert_decodes_to_its_end, make_video, times_s
from tests.contract.disks import small_tmpfs
from tests.contract.media_store import assert_in_line
from tests.system.rtsp import Camera, bundled_stream, need_server, numbered_stream
from tests.system.test_channel_commands import Frame
from zhcedge.app.clips import ClipKeeper, ClipNews
from zhcedge.app.remote_errors import remote_error
from zhcedge.backends.cpu.source import PyAvSource
from zhcedge.cli import main
from zhcedge.config.schema import Config
from zhcedge.core.lending import SurfaceLease
from zhcedge.core.requests import SourceOptions, SourceRequest
from zhcedge.media.packets import PacketRing
from zhcedge.service.clock import SystemClock
from zhcedge.store.clips import MediaIndex
from zhcedge.store.media_files import clips_folder

pytestmark = pytest.mark.slow  # processes, servers and sockets: minutes in all

WALKERS = Path(__file__).resolve().parents[2] / "zhcedge" / "data" / "walkers.mp4"
CLIPS = {"enabled": True, "before_s": 1.0, "after_s": 1.0, "max_s": 10.0}


class Device:
    """Frame process and keeper, joined as the control process joins them."""

    def __init__(self, channel: dict[str, object], storage: Path) -> None:
        channels: dict[str, object] = {"gate": {**channel, "clips": CLIPS}}
        sections = {"storage": {"dir": str(storage), "min_free_mb": 0}}
        self.frame = Frame(channels, **sections)
        config = Config.model_validate({"channels": channels, **sections})
        self._numbers = iter(range(1000, 10**9))
        self.keeper = ClipKeeper(config, "boot", SystemClock(), self._send, lambda: None)
        self.news: list[ClipNews] = []
        self._told = self._heard = 0

    def _send(self, word: str, camera: str, value: object) -> int:
        number = next(self._numbers)
        self.frame.process.command(number, word, camera, value)
        return number

    def turn(self) -> None:
        self.frame.turn()
        self.pass_on()

    def pass_on(self) -> None:
        events, self._told = self.frame.events[self._told :], len(self.frame.events)
        for event in events:
            self.keeper.event(event)
        messages, self._heard = self.frame.messages[self._heard :], len(self.frame.messages)
        for message in messages:
            if isinstance(clip := message.get("clip"), dict):
                self.keeper.take(clip)
            elif "refused" in message or "done" in message:
                number = int(str(message.get("refused", message.get("done"))))
                self.keeper.answered(number, remote_error(message["error"]) if "refused" in message else None)
        self.news += self.keeper.turn()

    def wait_for_news(self, count: int, within_s: float = 60.0) -> None:
        deadline_s = time.monotonic() + within_s
        while len(self.news) < count:
            assert time.monotonic() < deadline_s, str(self.frame.messages[-5:])
            self.turn()


@contextmanager
def device(channel: dict[str, object], storage: Path) -> Iterator[Device]:
    made = Device(channel, storage)
    try:
        made.keeper.start()
        made.frame.wait_for(lambda: {"phase": "active"} in made.frame.messages)
        yield made
    finally:
        made.frame.close()
        made.keeper.close()


def units(path: Path) -> list[bytes]:
    """The H.264 units of a video, without what separates them."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        to_start_codes = av.bitstream.BitStreamFilterContext("h264_mp4toannexb", stream)
        found = []
        for packet in container.demux(stream):
            for unit in to_start_codes.filter(packet) if packet.size else ():
                found += [part for part in bytes(unit).replace(b"\0\0\0\1", b"\0\0\1").split(b"\0\0\1") if part]
    return [unit for unit in found if unit[0] & 31 in (1, 5)]  # pictures; parameter sets may stand once or often


def test_an_event_at_a_camera_becomes_a_clip_of_the_cameras_own_pictures(tmp_path: Path) -> None:
    need_server()
    stream = bundled_stream(tmp_path / "walkers.ts", WALKERS)
    with Camera(stream) as camera, device({"source": {"uri": camera.address()}}, tmp_path / "media") as made:
        made.wait_for_news(1)
        report = made.frame.finish()  # what is still being recorded is finished and told
        made.pass_on()
        made.keeper.frame_process_ended()
    made.news += made.keeper.turn()
    assert isinstance(ledger := report["ledger"], dict)
    assert not any(ledger["violations"].values())
    whole = set(units(stream))
    with_clip = [news for news in made.news if news.ranges]
    assert with_clip
    for news in with_clip:
        for part in news.ranges:
            assert assert_decodes_to_its_end(part.path)
            assert set(units(part.path)) <= whole
            assert times_s(part.path)[0] == 0
            assert 0 <= part.from_s < part.to_s <= times_s(part.path)[-1] + 0.2
    index = MediaIndex(tmp_path / "media")
    assert assert_in_line(tmp_path / "media", index) >= 1
    assert index.wanted() == []
    assert index.clip_of(f"boot/{with_clip[0].event_id}")
    index.close()


@pytest.mark.slow
def test_a_frame_process_that_is_killed_leaves_clips_for_its_events(tmp_path: Path) -> None:
    channel: dict[str, object] = {"source": {"uri": "clip:walkers", "loop": True, "realtime": True}}
    with device(channel, tmp_path / "media") as made:
        folder = clips_folder(tmp_path / "media", "gate")

        def has_written() -> bool:
            made.turn()
            return any(path.stat().st_size > 20_000 for path in folder.glob("*.part"))

        deadline_s = time.monotonic() + 60
        while not has_written():
            assert time.monotonic() < deadline_s
        os.kill(made.frame.process.pid, signal.SIGKILL)
        made.frame.process.wait(5.0)
        made.keeper.frame_process_ended()
        while not any(news.ranges for news in made.news):
            assert time.monotonic() < deadline_s
            made.news += made.keeper.turn()
    recovered = next(news for news in made.news if news.ranges)
    assert recovered.notes == ("the recording broke off",)
    index = MediaIndex(tmp_path / "media")
    assert_in_line(tmp_path / "media", index)
    index.close()


def test_a_pattern_has_no_clips_and_says_why(tmp_path: Path) -> None:
    with device({"source": {"uri": "pattern:boxes"}}, tmp_path / "media") as made:
        assert "no compressed packets" in made.keeper.obstacle("gate")
        answer = made.frame.ask("clip", "gate", {"key": "a", "start_ns": time.time_ns(), "end_ns": None})
        assert isinstance(error := answer.get("error"), dict)
        assert "no compressed packets" in error["what"]
        assert "refused" in made.frame.ask("clip", "gate", {"key": "a"})
        assert "refused" in made.frame.ask("clip", "nobody", {"key": "a", "start_ns": 1, "end_ns": None})


@pytest.mark.slow
def test_a_camera_that_comes_back_with_another_size_goes_on_in_another_file(tmp_path: Path) -> None:
    need_server()
    small = numbered_stream(tmp_path / "small.ts", 20)
    large = numbered_stream(tmp_path / "large.ts", 20, sizes=((128, 96),))
    ring = PacketRing()
    with Camera(small) as camera, Scene(small, tmp_path / "clips", ring, max_s=60.0) as scene:
        scene.source.close()  # the scene's recorder, and a camera in place of its file
        options = SourceOptions(read_timeout_s=2.0)
        request = SourceRequest(0, "gate", camera.address(), False, False, SystemClock(), options, packets=ring)
        scene.source = PyAvSource(request, None)
        scene.source.open()
        scene.play(40, pause_s=0)
        scene.begin("a", 30)
        scene.play(20, pause_s=0)
        camera.kill()
        camera._command[2] = str(large)
        camera.start()
        captured = len(scene.captured)
        deadline_s = time.monotonic() + 60
        while len(scene.captured) < captured + 40:
            assert time.monotonic() < deadline_s
            lease = scene.source.read(0.5)
            if isinstance(lease, SurfaceLease):
                scene.captured.append(lease.info.capture_time_ns)
                lease.release()
    clip = scene.clip()
    sizes = []
    for part in clip.parts:
        assert_decodes_to_its_end(part.path)
        with av.open(str(part.path)) as container:
            sizes.append((container.streams.video[0].width, container.streams.video[0].height))
    assert sizes == [(64, 48), (128, 96)]


def test_a_full_disk_ends_the_clip_with_what_is_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    video = make_video(tmp_path / "video.mp4", 60, codec="mjpeg", size=(640, 480))
    with small_tmpfs(disk), Scene(video, disk / "clips", before_s=0.0, max_s=50.0) as scene:
        (disk / "others").write_bytes(bytes(3_500_000))
        scene.play(5)
        scene.begin("a", 0)
        scene.play(400, pause_s=0.005)
        clip = scene.clip()
        assert "No space left" in clip.notes[-1]
        (part,) = clip.parts
        assert assert_decodes_to_its_end(part.path) > 20
        assert part.seconds == pytest.approx(times_s(part.path)[-1] + 0.1)  # and no more is said to be there
        assert part.to_s <= part.seconds
        for key in ("b", "c"):
            scene.begin(key, -1)
            scene.play(50, pause_s=0.005)
            after = scene.clip()  # nothing fits any more, and that hurts nobody
            assert (after.parts, bool(after.notes)) == ((), True)
        assert [path.name for path in (disk / "clips").iterdir()] == [part.path.name]
        assert len([line for line in caplog.messages if "No space left" in line]) == 1
        (disk / "others").unlink()
        scene.end("d", -1, -1)
        scene.play(200, pause_s=0.005)
        assert scene.clip().parts


def test_a_clip_ends_before_the_disks_floor(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    video = make_video(tmp_path / "video.mp4", 60, codec="mjpeg", size=(640, 480))
    with small_tmpfs(disk), Scene(video, disk / "clips", before_s=0.0, keep_free_bytes=1_000_000) as scene:
        (disk / "others").write_bytes(bytes(1_000_000))
        scene.play(5)
        scene.begin("a", 0)
        scene.play(400, pause_s=0.005)
        clip = scene.clip()
        free = os.statvfs(disk)
        assert free.f_bavail * free.f_frsize >= 1_000_000
        assert "free space" in clip.notes[-1]
        assert clip.parts


@pytest.mark.slow
def test_purging_beside_a_running_keeper_disturbs_nothing(tmp_path: Path) -> None:
    channel: dict[str, object] = {"source": {"uri": "clip:walkers", "loop": True, "realtime": True}}
    storage = tmp_path / "media"
    config = tmp_path / "zhc-edge.yaml"
    config.write_text(f"channels: {{gate: {{source: {{uri: 'clip:walkers'}}}}}}\nstorage: {{dir: {storage}}}\n")
    purge = [sys.executable, "-m", "zhcedge", "purge", "-c", str(config), "--camera", "gate"]
    with device(channel, storage) as made:
        made.wait_for_news(1)
        refused = subprocess.run(purge, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        assert refused.returncode == 2
        assert "--yes" in refused.stderr
        done = subprocess.run([*purge, "--yes"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "clips and snapshots" in done.stdout
        earlier = {part.path for news in made.news for part in news.ranges}
        assert not [path for path in earlier if path.exists()]
        # Events of the recording that was deleted while it was written get no clip; later ones do.
        before = len(made.news)
        while not any(news.ranges for news in made.news[before:]):
            made.wait_for_news(len(made.news) + 1)
    index = MediaIndex(storage)
    assert not [file for file in index.files() if file.path in earlier]
    index.close()


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ([], 2, "--camera"),
        (["--all", "--camera", "gate"], 2, "--camera"),
        (["--before", "yesterday"], 2, "is no time"),
        (["--before", "", "--yes"], 2, "is no time"),
        (["--before", "999999999w", "--yes"], 2, "too far away"),
        (["--camera", "", "--yes"], 2, "no camera is called"),
        (["--camera", "Gate ", "--yes"], 2, "no camera is called"),
        (["--before", "7d", "--yes"], 0, "deleted: 0"),
        (["--before", "2025-01-31T18:00Z", "--camera", "gate", "--yes"], 0, "deleted: 0"),
        (["--all", "--yes"], 0, "deleted: 0"),
    ],
)
def test_the_command_says_what_it_wants(words: list[str], code: int, told: str, tmp_path: Path) -> None:
    (tmp_path / "media").mkdir()
    config = tmp_path / "zhc-edge.yaml"
    config.write_text("channels: {gate: {source: {uri: 'clip:walkers'}}}\nstorage: {dir: media}\n")
    command = [sys.executable, "-m", "zhcedge", "purge", "-c", str(config), *words]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == code, done.stderr
    assert told in done.stdout + done.stderr


@pytest.fixture
def purgeable(tmp_path: Path) -> Path:
    """A configuration with a clip, beside it an index and a history that were damaged and set aside."""
    folder = clips_folder(tmp_path / "media", "gate")
    folder.mkdir(parents=True)
    (folder / "20250131T101112.123456Z.mp4").write_bytes(b"pictures")
    for name in ("media/index.sqlite", "history.db"):
        for rest in ("", "-wal"):
            (tmp_path / f"{name}.broken-20250131T101112-0{rest}").write_bytes(b"gate, 10:11")
    config = tmp_path / "zhc-edge.yaml"
    config.write_text("channels: {gate: {source: {uri: 'clip:walkers'}}}\nstorage: {dir: media}\noutbox: {dir: .}\n")
    return config


def left_of(config: Path) -> list[str]:
    return sorted(path.name for path in config.parent.rglob("*") if ".mp4" in path.name or ".broken" in path.name)


def test_what_was_set_aside_is_purged_too(purgeable: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["purge", "-c", str(purgeable), "--camera", "yard", "--yes"]) == 0
    assert left_of(purgeable) == ["20250131T101112.123456Z.mp4"]
    assert "deleted: 2 clips" in capsys.readouterr().out


def test_a_damaged_history_keeps_nobody_from_deleting_clips(
    purgeable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (purgeable.parent / "history.db").write_bytes(b"no database" * 1000)
    assert main(["purge", "-c", str(purgeable), "--all", "--yes"]) == 73
    assert "damaged" in capsys.readouterr().err
    assert left_of(purgeable) == []


def test_nothing_is_deleted_when_nobody_answers(
    purgeable: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for typed in ("", "n\n", "\n"):
        monkeypatch.setattr(sys, "stdin", Terminal(typed))
        assert main(["purge", "-c", str(purgeable), "--all"]) == 1
        assert "nothing was deleted" in capsys.readouterr().out
    assert len(left_of(purgeable)) == 5
