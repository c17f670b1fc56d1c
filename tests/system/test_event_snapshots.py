"""Pictures of events from the real daemon: on the disk, over MQTT, masked, purged, and lost when the disk is full."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pytest

from tests.contract.brokers import PATIENCE_S, find_mosquitto, running, start_mosquitto
from tests.system.test_channel_commands import CLIP, Frame
from tests.system.test_mqtt_commands import Commander
from tests.system.test_run import daemon, started, write_config
from zhcedge.store.clips import MediaIndex
from zhcedge.store.media_files import SNAPSHOT, MediaFile, media_files

pytestmark = pytest.mark.slow  # processes, servers and sockets: minutes in all

Luma = npt.NDArray[np.uint8]

SIZE = (768, 576)  # of the bundled clip
MASK = (0.3, 0.85, 0.6, 1.0)  # grass: nobody is detected in it, nor so near that a name is drawn over it
SNAPSHOTS = {"enabled": True}
_NOISE = 6.0  # mean difference of two JPEGs of the same pixels, of 255


_CLIP_S = 90.0  # the clip three times over


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """As tests.contract.brokers.wait_until, for what takes as long as people walk."""
    deadline_s = time.monotonic() + _CLIP_S
    while not condition():
        assert time.monotonic() < deadline_s, f"waited in vain for {what}"
        time.sleep(0.05)


def decoded(jpeg: bytes) -> Luma:
    """[height, width]"""
    with av.open(io.BytesIO(jpeg), format="jpeg_pipe") as picture:
        luma: Luma = next(picture.decode(video=0)).to_ndarray(format="gray8")
    return luma


def polygon_of(mask: tuple[float, float, float, float]) -> list[list[float]]:
    left, top, right, bottom = mask
    return [[left, top], [right, top], [right, bottom], [left, bottom]]


def is_black(luma: Luma) -> bool:
    """The mask's part of a whole picture, without the border where a JPEG's blocks mix both sides."""
    left, right = (round(edge * SIZE[0]) for edge in (MASK[0], MASK[2]))
    top = round(MASK[1] * SIZE[1])
    return bool(luma[top + 16 :, left + 16 : right - 16].max() <= 12)


def best_place(crop: Luma, whole: Luma) -> tuple[int, int, float]:
    """Where a crop lies in the whole picture: left, top, and by how much they differ there on average."""
    points = np.random.default_rng(1).integers(0, crop.shape, (400, 2))
    wanted = crop[points[:, 0], points[:, 1]].astype(np.int16)
    places = [
        (float(np.abs(whole[points[:, 0] + top, points[:, 1] + left] - wanted).mean()), left, top)
        for top in range(0, whole.shape[0] - crop.shape[0] + 1, 2)
        for left in range(0, whole.shape[1] - crop.shape[1] + 1, 2)
    ]
    difference, left, top = min(places)
    return left, top, difference


def test_a_crop_shows_the_region_of_the_whole_picture_that_was_asked_for() -> None:
    frame = Frame({"gate": {"source": CLIP, "masks": [polygon_of(MASK)]}})
    try:
        frame.wait_for(lambda: {"phase": "active"} in frame.messages)
        areas = [[0.4, 0.3, 0.5, 0.7], [0.0, 0.0, 1.0, 1.0], [0.1, 0.1, 0.3, 0.3], [0.95, 0.9, 1.0, 1.0]]
        value = frame.ask("snapshot", "gate", {"crops": areas}).get("value")
        assert isinstance(value, dict)
        whole = decoded(base64.b64decode(value["jpeg"]))
        assert whole.shape == SIZE[::-1]
        assert is_black(whole)
        for area, crop in zip(areas, value["crops"], strict=True):
            left, top, width, height = crop["rectangle"]
            assert (width % 64, height % 64) == (0, 0)
            assert left <= area[0] * SIZE[0] < area[2] * SIZE[0] <= left + width
            assert top <= area[1] * SIZE[1] < area[3] * SIZE[1] <= top + height
            shown = decoded(base64.b64decode(crop["jpeg"]))
            region = whole[top : top + height, left : left + width]
            assert shown.shape == region.shape
            assert np.abs(shown.astype(int) - region).mean() < _NOISE
        assert "refused" in frame.ask("snapshot", "gate", {"crops": [[0, 0, 2, 2]]})
        report = frame.finish()
    finally:
        frame.close()
    assert isinstance(ledger := report["ledger"], dict)
    assert not any(ledger["violations"].values())


@dataclass
class Site:
    """A daemon that keeps pictures, its broker's client, and its files."""

    client: Commander
    config: Path
    storage: Path

    def files(self) -> dict[str, MediaFile]:
        """Those that there are, by what stands behind the time in their names."""
        found = [file for file in media_files(self.storage) if not file.is_part]
        return {file.path.name.split("Z-", 1)[1]: file for file in found}

    def ended(self) -> list[dict[str, object]]:
        return [event["after"] for event in self.client.events(0) if event["type"] == "end"]  # type: ignore[misc]

    def alerts(self) -> list[str]:
        return [json.loads(alert)["code"] for alert in self.client.since(0, "alerts")]


@contextmanager
def site(folder: Path, *, shows: bool = True, **storage: object) -> Iterator[Site]:
    """Ended by the test's end, with a check that the frame path is clean."""
    media = folder / "media"
    channel = {"source": CLIP, "masks": [polygon_of(MASK)], "snapshots": SNAPSHOTS}
    with running(start_mosquitto, folder) as broker, Commander(broker.port) as client:
        config = write_config(
            folder,
            mqtt={"port": broker.port, "snapshots": shows, "stats_interval_s": 1},
            channels={"gate": channel},
            storage={"dir": str(media), "min_free_mb": 0, **storage},
        )
        with started(config) as process:
            client.wait_active()
            yield Site(client, config, media)
            start = len(client.heard)
            wait_until(lambda: bool(client.since(start, "stats")), "figures")
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
            assert process.stderr is not None
            assert b"Traceback" not in process.stderr.read()
        assert json.loads(client.latest("stats"))["ledger_violations"] == 0


@pytest.mark.slow
@pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
def test_events_have_their_best_picture_whole_and_cropped_until_it_is_purged(tmp_path: Path) -> None:
    with site(tmp_path) as made:
        wait_until(lambda: sum(bool(after["has_snapshot"]) for after in made.ended()) >= 3, "three ends")
        pictured = [after for after in made.ended() if after["has_snapshot"]]
        files = made.files()
        for after in pictured:
            whole = decoded(files[f"{after['id']}.jpg"].path.read_bytes())
            assert whole.shape == SIZE[::-1]
            assert is_black(whole)
            crop = decoded(files[f"{after['id']}-crop.jpg"].path.read_bytes())
            left, top, difference = best_place(crop, whole)
            assert difference < _NOISE, after["id"]
            assert is_on_the_way(after, (left, top, crop.shape[1], crop.shape[0]))
            assert files[f"{after['id']}.jpg"].start_ns == pytest.approx(float(str(after["start_time"])) * 1e9, abs=2e3)
        published = made.client.since(0, "camera/gate/snapshot")
        kept = {files[f"{after['id']}.jpg"].path.read_bytes() for after in pictured}
        wait_until(lambda: kept <= set(made.client.since(0, "camera/gate/snapshot")), "the pictures at the broker")
        assert not any(message.retain for message in made.client.heard if message.topic.endswith("/snapshot"))
        assert len(published) <= len(made.ended())
        index = MediaIndex(made.storage)
        indexed = {file.path for file in index.files() if file.kind == SNAPSHOT}
        assert {file.path for file in files.values()} <= indexed
        words = ["purge", "-c", str(made.config), "--camera", "gate", "--before", "0s", "--yes"]
        subprocess.run([sys.executable, "-m", "zhcedge", *words], check=True, capture_output=True)
        assert not any(file.path.exists() for file in files.values() if is_over(file, made))
        index.close()


def is_on_the_way(after: dict[str, object], crop: tuple[int, int, int, int]) -> bool:
    """Whether an object's path, which is where its box stood, goes through a crop in pixels."""
    left, top, width, height = crop
    path = after["path"]
    assert isinstance(path, list)
    feet = [(x * SIZE[0], y * SIZE[1]) for x, y in path]
    spans = [np.linspace(a, b, 50) for a, b in zip(feet, feet[1:] or feet, strict=False)]
    return any(left <= x <= left + width and top <= y <= top + height for span in spans for x, y in span)


def is_over(file: MediaFile, made: Site) -> bool:
    """Whether no better picture of the file's event can come any more."""
    return any(f"-{after['id']}." in file.path.name for after in made.ended())


@pytest.mark.slow
@pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
def test_without_room_on_the_disk_pictures_are_dropped_and_that_is_told_once(tmp_path: Path) -> None:
    with site(tmp_path, min_free_mb=100_000_000) as made:
        wait_until(lambda: len(made.ended()) >= 2, "two ends")
        assert made.alerts().count("snapshots-lost") == 1
        assert not any(after["has_snapshot"] for after in made.ended())
        assert made.files() == {}
        assert made.client.since(0, "camera/gate/snapshot") == []


@pytest.mark.slow
@pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
def test_nothing_is_published_of_what_is_kept_unless_that_is_wanted(tmp_path: Path) -> None:
    with site(tmp_path, shows=False) as made:
        wait_until(lambda: any(after["has_snapshot"] for after in made.ended()), "an end")
        time.sleep(1)
        assert made.files()
    assert made.client.since(0, "camera/gate/snapshot") == []


def test_pictures_without_a_folder_are_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    config = write_config(tmp_path, channels={"gate": {"source": CLIP, "snapshots": SNAPSHOTS}})
    result = subprocess.run(daemon(config), capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 78
    assert "storage.dir: snapshots need a folder" in result.stderr
