"""`zhc-edge replay`: what the rules say about a recording is what the daemon would have told of it."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import av
import numpy as np
import pytest
import yaml
from PIL import Image

from tests.contract.brokers import Subscriber, find_mosquitto, running, start_amqtt, start_mosquitto, wait_until
from tests.contract.clips import cut_clip
from zhcedge.cli import main
from zhcedge.media.rule_drawing import COLOURS

pytestmark = pytest.mark.slow  # processes, servers and sockets: minutes in all

CLIP = Path(__file__).parents[2] / "zhcedge" / "data" / "walkers.mp4"
ZONE = {"points": [[0.3, 0.3], [0.75, 0.3], [0.75, 0.95], [0.3, 0.95]], "loiter_s": 1.0}
LINE = {"points": [[0.55, 0.0], [0.55, 1.0]]}


def write_config(folder: Path, uri: str, **changes: object) -> Path:
    gate = {"source": {"uri": uri}, "zones": {"pavement": ZONE}, "lines": {"middle": LINE}}
    config = {"device": "t", "channels": {"gate": gate}, "pipeline": {"warmup_frames": 2}, **changes}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def replay(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zhcedge", "replay", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def tail_of(folder: Path) -> Path:
    """A part of the clip in which somebody crosses the line."""
    return cut_clip(CLIP, folder / "part.mp4", 110)


def facts_of(event: dict[str, object]) -> tuple[object, ...]:
    keys = ("id", "label", "top_score", "entered_zones", "line_crossings")
    return tuple(json.dumps(event[key]) for key in keys)


def test_replay_tells_the_events_that_the_daemon_tells_and_draws_what_it_looked_at(tmp_path: Path) -> None:
    clip = tail_of(tmp_path)
    with (
        running(start_mosquitto if find_mosquitto() else start_amqtt, tmp_path) as broker,
        Subscriber(broker.port, "zhcedge/t/+") as client,
    ):
        config = write_config(tmp_path, str(clip), mqtt={"port": broker.port})
        subprocess.run([sys.executable, "-m", "zhcedge", "run", "-c", config], check=True, timeout=300)
        client.wait_for("/available", b"stopped")
        messages = [json.loads(payload) for payload in client.payloads("/events")]
    told = [(facts_of(one["after"]), one["end_reason"]) for one in messages if one["type"] == "end"]

    # The same rules, for a camera that is not there.
    config = write_config(tmp_path, "rtsp://127.0.0.1:9/none")
    outputs = {"--out": "drawn.mp4", "--table": "events.csv", "--zones": "zones.png"}
    files = [word for option, name in outputs.items() for word in (option, tmp_path / name)]
    result = replay(clip, "-c", config, "--json", "--start", "2026-01-31T18:30:00Z", *files)
    assert (result.returncode, result.stderr) == (0, "")
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(facts_of(event), event["end_reason"]) for event in events] == told
    assert any(event["line_crossings"] for event in events)
    assert any(event["loitered_zones"] for event in events)

    began_s = datetime(2026, 1, 31, 18, 30, tzinfo=timezone.utc).timestamp()
    assert all(event["start_time"] == pytest.approx(began_s + event["from_s"], abs=1e-3) for event in events)
    assert all(0 <= event["from_s"] < event["to_s"] <= 11 for event in events)
    with (tmp_path / "events.csv").open(newline="") as file:
        assert [row["id"] for row in csv.DictReader(file)] == [event["id"] for event in events]
    assert has_colour_inside(tmp_path / "zones.png")
    with av.open(str(tmp_path / "drawn.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) == 110
    names = {"part.mp4", "config.yaml", *outputs.values()}
    assert not {path.name for path in tmp_path.iterdir() if path.name.startswith(".zhc")}
    assert names <= {path.name for path in tmp_path.iterdir()}


def has_colour_inside(picture: Path) -> bool:
    """Whether the zone is nearer to its colour than what is around it: on grass and asphalt the red stands out."""
    pixels = np.asarray(Image.open(picture).convert("RGB")).astype(float)
    height, width, _ = pixels.shape
    redness = pixels[:, :, 0] - pixels[:, :, 1:].mean(axis=2)
    inside = redness[round(0.4 * height) : round(0.9 * height), round(0.35 * width) : round(0.5 * width)]
    outside = redness[round(0.4 * height) : round(0.9 * height), round(0.05 * width) : round(0.25 * width)]
    assert COLOURS[0][0] > max(COLOURS[0][1:])
    return bool(np.median(inside) > np.median(outside) + 20)


def test_one_frame_is_enough_for_a_picture_and_masks_are_black_in_it(tmp_path: Path) -> None:
    mask = [[0.0, 0.0], [0.25, 0.0], [0.25, 0.25], [0.0, 0.25]]
    gate = {"source": {"uri": "rtsp://127.0.0.1:9/none"}, "zones": {"pavement": ZONE}, "masks": [mask]}
    config = write_config(tmp_path, "", channels={"gate": gate, "other": gate})
    words = (CLIP, "-c", config, "--channel", "gate", "--frames", "1", "--zones", tmp_path / "zones.png")
    result = replay(*words)
    assert result.returncode == 0, result.stderr
    assert "its clock begins now" in result.stderr
    assert "1 frames" in result.stdout
    pixels = np.asarray(Image.open(tmp_path / "zones.png").convert("RGB"))
    assert pixels[20:120, 20:170].max() < 40
    assert has_colour_inside(tmp_path / "zones.png")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["absent.mp4"], 66, "absent.mp4"),
        (["clip:absent"], 66, "walkers"),
        (["noise.mp4"], 65, "noise.mp4"),
        (["rtsp://127.0.0.1:9/none"], 2, "no recording"),
        (["."], 2, "no recording"),
        (["clip:walkers", "--channel", "nobody"], 2, "gate"),
        (["clip:walkers", "--start", "tomorrow"], 2, "--start"),
        (["clip:walkers", "--out", "drawn.avi"], 2, "--out"),
        (["clip:walkers", "--zones", "absent/zones.png"], 73, "absent/zones.png"),
        (["noise.mp4", "--out", "noise.mp4"], 2, "--out"),
        (["clip:walkers", "--table", "one.csv", "--zones", "one.csv"], 2, "--zones"),
    ],
)
def test_bad_input_is_one_clear_line_and_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noise.mp4").write_bytes(b"noise" * 1000)
    config = write_config(tmp_path, "rtsp://127.0.0.1:9/none")
    assert main(["replay", *words, "-c", str(config)]) == code
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "its clock begins now" not in one]
    assert line.startswith("zhc-edge: ")
    assert text in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "noise.mp4"]


def test_ctrl_c_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    config = write_config(tmp_path, "rtsp://127.0.0.1:9/none")
    words = ["clip:walkers", "-c", config, "--out", tmp_path / "drawn.mp4", "--table", tmp_path / "events.csv"]
    with subprocess.Popen([sys.executable, "-m", "zhcedge", "replay", *map(str, words)]) as process:
        wait_until(lambda: any(tmp_path.glob(".zhc-edge-replay-*/.pictures.mp4.part")), "the first output")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
