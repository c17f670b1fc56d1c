"""`zhc-edge detect` as a user runs it: real pictures and videos, real outputs, exit codes."""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import av
import pytest
from PIL import Image

from zhcedge.app.detect import DetectSettings, InputResult, detect
from zhcedge.app.progress import Progress
from zhcedge.app.wiring import RunContext, build_plan
from zhcedge.backends.cpu.arena import CpuArena
from zhcedge.backends.engines._vendor import Session
from zhcedge.cli import main
from zhcedge.config.schema import Config
from zhcedge.core.errors import ConfigError, ModelError, UsageError
from zhcedge.models.bundle import Bundle
from zhcedge.pipeline.plan import Plan

ROOT = Path(__file__).parents[2]
CLIP = ROOT / "zhcedge/data/walkers.mp4"
QUICK = ("pipeline.warmup_frames=1", "engine.threads=1", "pipeline.lanes=1")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: three frames of the clip, one in another size, a broken one, and a file that is no picture."""
    folder = tmp_path_factory.mktemp("pictures")
    with av.open(str(CLIP)) as container:
        frames = [frame.to_image() for frame, _ in zip(container.decode(video=0), range(12), strict=False)]
    frames[0].save(folder / "frame2.jpg", quality=95)
    frames[10].save(folder / "frame10.jpg", quality=95)
    frames[5].resize((400, 300)).save(folder / "small.png")
    (folder / "broken.jpg").write_bytes(b"nonsense")
    (folder / "notes.txt").write_text("not a picture")
    return folder


class Outcome:
    def __init__(self, *inputs: str | Path, **changes: object) -> None:
        self.complaints: list[str] = []
        self.results: list[InputResult] = []
        out = io.StringIO()
        changes["overrides"] = [*QUICK, *cast("list[str]", changes.get("overrides", []))]
        settings = DetectSettings(tuple(map(str, inputs)), **{"json_to_stdout": True, **changes})  # type: ignore[arg-type]
        self.code = detect(settings, out, Progress(io.StringIO()), self.complaints.append, self.results.append)
        self.lines = [cast("dict[str, object]", json.loads(line)) for line in out.getvalue().splitlines()]


def labels_of(line: dict[str, object]) -> list[str]:
    return [found["label"] for found in cast("list[dict[str, str]]", line["detections"])]


def test_every_frame_of_a_video_is_one_json_object() -> None:
    outcome = Outcome(CLIP, frames=4)
    assert outcome.code == 0
    assert [line["frame"] for line in outcome.lines] == [0, 1, 2, 3]
    assert [line["time_s"] for line in outcome.lines] == [0.0, 0.1, 0.2, 0.3]
    for line in outcome.lines:
        assert list(line) == ["source", "frame", "time_s", "width", "height", "detections"]
        assert (line["source"], line["width"], line["height"]) == (str(CLIP), 768, 576)
        for found in cast("list[dict[str, object]]", line["detections"]):
            left, top, right, bottom = cast("list[float]", found["box"])
            assert 0 <= left < right <= 768
            assert 0 <= top < bottom <= 576
            assert 0 < cast("float", found["score"]) <= 1
    assert "person" in labels_of(outcome.lines[0])
    assert [(result.input, result.frames) for result in outcome.results] == [(str(CLIP), 4)]


def test_the_pictures_of_a_folder_are_sources_of_their_own_whatever_their_size(pictures: Path) -> None:
    outcome = Outcome(pictures)
    found = [(Path(str(line["source"])).name, line["frame"], line["width"], line["height"]) for line in outcome.lines]
    assert found == [("frame2.jpg", 0, 768, 576), ("frame10.jpg", 0, 768, 576), ("small.png", 0, 400, 300)]
    assert all("person" in labels_of(line) for line in outcome.lines[:2])
    assert outcome.code == 65
    assert len(outcome.complaints) == 1
    assert "broken.jpg: is not an image" in outcome.complaints[0]


def test_a_picture_has_the_boxes_of_the_video_frame_that_it_shows(pictures: Path) -> None:
    (video,) = Outcome(CLIP, frames=1).lines
    (picture,) = Outcome(pictures / "frame2.jpg").lines
    both = [cast("list[dict[str, object]]", line["detections"]) for line in (video, picture)]
    for ours, theirs in zip(*both, strict=False):
        assert ours["label"] == theirs["label"]
        assert ours["box"] == pytest.approx(theirs["box"], abs=6)


def test_failed_inputs_do_not_keep_the_others_from_being_run(pictures: Path, tmp_path: Path) -> None:
    (noise := tmp_path / "noise.mp4").write_bytes(os.urandom(100_000))
    outcome = Outcome(tmp_path / "absent.mp4", noise, "ftp://host/x", pictures / "small.png")
    assert outcome.code == 66  # of the first one
    assert [line["width"] for line in outcome.lines] == [400]
    assert len(outcome.complaints) == 3
    for complaint, words in zip(outcome.complaints, ["absent.mp4", "noise.mp4", "ftp://host/x"], strict=True):
        assert words in complaint
        assert "\n" not in complaint
        assert not complaint.startswith("input:")


def test_wishes_that_concern_every_input_end_the_command_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="full precision"):
        Outcome(CLIP, is_half=True)
    with pytest.raises(UsageError, match="several inputs"):
        Outcome(CLIP, CLIP, video=tmp_path / "one.mp4")
    with pytest.raises(ModelError):
        Outcome(CLIP, values={"model": {"bundle": "./absent"}})


def test_classes_score_video_pictures_and_a_file_of_detections(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["detect", "clip:walkers", str(CLIP), "--frames", "3", "--classes", "person", "--score", "0.6"]
    words += ["--json", str(tmp_path / "found.jsonl"), "--video", str(tmp_path / "videos")]
    words += ["--images", str(tmp_path / "drawn"), *(word for pair in QUICK for word in ("--set", pair))]
    assert main(words) == 0
    lines = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert [(line["source"], line["frame"]) for line in lines] == [
        (source, frame) for source in ("clip:walkers", str(CLIP)) for frame in range(3)
    ]
    assert {label for line in lines for label in labels_of(line)} == {"person"}
    assert min(found["score"] for line in lines for found in line["detections"]) >= 0.6
    for name in ("clip-walkers.mp4", "walkers.mp4"):
        with av.open(str(tmp_path / "videos" / name)) as container:
            assert sum(1 for _ in container.decode(video=0)) == 3
    names = sorted(path.name for path in (tmp_path / "drawn").iterdir())
    assert names == [f"{stem}-{number:08}.jpg" for stem in ("clip-walkers", "walkers") for number in range(3)]
    with Image.open(tmp_path / "drawn" / names[0]) as picture:
        assert picture.size == (768, 576)
    out = capfd.readouterr().out.splitlines()
    assert [line.partition(" frames")[0] for line in out] == ["clip:walkers: 3", f"{CLIP}: 3"]


def test_pictures_of_one_name_do_not_overwrite_each_other(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (twin := tmp_path / "in" / "small.png").write_bytes((pictures / "small.png").read_bytes())
    assert Outcome(pictures / "small.png", twin, pictures=tmp_path / "drawn").code == 0
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == ["small-2.jpg", "small.jpg"]


@pytest.mark.parametrize(
    "address",
    [
        "https://user:hunter2@127.0.0.1:9/x.mp4",
        "rtsp://admin:2024#hunter2@127.0.0.1:9/stream",
        "rtsp://127.0.0.1:9/hunter2@x",
        "http://127.0.0.1:9?hunter2@x",
        "rtsp:/admin:hunter2@127.0.0.1/x",
        "admin:hunter2@127.0.0.1/x",
        "ftp://admin:hunter2@127.0.0.1/x",
    ],
)
def test_a_password_in_an_address_is_shown_nowhere(address: str) -> None:
    outcome = Outcome(address)
    assert outcome.code != 0
    assert "hunter2" not in "".join(outcome.complaints)


@pytest.mark.parametrize("words", [["--json"], []])
def test_a_full_disk_behind_standard_output_is_an_error_of_the_output(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            command("clip:walkers", "--frames", "1", *words),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (result.returncode, result.stderr) == (
        73,
        "zhc-edge: standard output: can't be written: No space left on device\n",
    )


def test_an_output_that_is_an_input_by_any_name_is_refused_before_anything_is_written(
    pictures: Path, tmp_path: Path
) -> None:
    content = CLIP.read_bytes()
    (clip := tmp_path / "clip.mp4").write_bytes(content)
    (hard := tmp_path / "hard.jsonl").hardlink_to(clip)
    (soft := tmp_path / "soft.jsonl").symlink_to(clip)
    (linked := tmp_path / "linked").symlink_to(pictures)
    for changes in (
        {"video": clip},
        {"json": clip},
        {"json": hard},
        {"json": soft},
        {"video": tmp_path},
        {"overrides": [f'channels.input.sinks=[{{"kind": "jsonl", "path": "{hard}"}}]']},
    ):
        with pytest.raises(UsageError, match=r"clip\.mp4"):
            Outcome(clip, **changes)
    for changes in ({"pictures": pictures}, {"pictures": linked}, {"json": pictures / "frame2.jpg"}):
        with pytest.raises(UsageError, match="would overwrite the input"):
            Outcome(pictures, **changes)
    with pytest.raises(UsageError, match="into the folder of the input"):
        Outcome(pictures / "frame2.jpg", pictures=pictures)
    with pytest.raises(UsageError, match="same place"):
        Outcome(clip, json=tmp_path / "x.mp4", video=tmp_path / "x.mp4")
    assert clip.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clip.mp4", "hard.jsonl", "linked", "soft.jsonl"]
    assert sorted(path.name for path in pictures.iterdir()) == sorted(
        ["frame2.jpg", "frame10.jpg", "small.png", "broken.jpg", "notes.txt"]
    )


def test_an_older_list_stays_where_nothing_could_be_read(tmp_path: Path) -> None:
    (old := tmp_path / "old.jsonl").write_text("old")
    assert Outcome(tmp_path / "absent.mp4", json=old, json_to_stdout=False).code == 66
    assert old.read_text() == "old"
    assert list(tmp_path.iterdir()) == [old]


def test_combinations_that_can_not_be_are_refused_before_the_first_input_is_run(pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="write them with --images"):
        Outcome(CLIP, pictures, video=tmp_path / "seen")
    with pytest.raises(UsageError, match="without --video"):
        Outcome(CLIP, pictures, video=tmp_path / "seen", pictures=tmp_path / "drawn")
    with pytest.raises(UsageError, match=r"\.avi"):
        Outcome(CLIP, video=tmp_path / "seen.avi")
    with pytest.raises(UsageError, match="--frames"):
        Outcome(CLIP, frames=-1)
    with pytest.raises(ConfigError, match=r"^--score: .*from 0 to 1"):
        Outcome(CLIP, values={"model": {"score_threshold": 3.0}})
    assert list(tmp_path.iterdir()) == []


def test_pipes_and_devices_are_refused_without_waiting_for_them(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe.mp4")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket.mp4"))
        outcome = Outcome(pipe, tmp_path / "socket.mp4", "/dev/zero")
    assert outcome.code == 65
    assert all("is a device or a pipe" in complaint for complaint in outcome.complaints)
    assert len(outcome.complaints) == 3


def test_names_that_are_no_text_are_shown_as_percent_codes(pictures: Path, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"in\xff")
    folder.mkdir()
    name = os.fsdecode(b"a\xe9.png")
    (folder / name).write_bytes((pictures / "small.png").read_bytes())
    (video := folder / os.fsdecode(b"v\xe9.mp4")).write_bytes(CLIP.read_bytes())
    outcome = Outcome(
        folder / name, folder, video, frames=1, json=tmp_path / os.fsdecode(b"list\xff"), json_to_stdout=False
    )
    assert (outcome.code, outcome.complaints) == (0, [])
    assert [result.input.rpartition("/in")[2] for result in outcome.results] == ["%FF/a%E9.png", "%FF", "%FF/v%E9.mp4"]
    lines = (tmp_path / os.fsdecode(b"list\xff")).read_text().splitlines()
    sources = [json.loads(line)["source"] for line in lines]
    assert [source.rpartition("/")[2] for source in sources] == ["a%E9.png", "a%E9.png", "v%E9.mp4"]
    assert all("/in%FF/" in source for source in sources)
    drawn = Outcome(folder / name, pictures=tmp_path / os.fsdecode(b"drawn\xff"))
    assert drawn.code == 0
    assert [path.name for path in (tmp_path / os.fsdecode(b"drawn\xff")).iterdir()] == [os.fsdecode(b"a\xe9.jpg")]


def test_pictures_of_one_size_share_a_plan_and_a_limit_counts_for_each_input(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = list[int]()

    def counting(config: Config, context: RunContext, bundle: Bundle | None = None) -> Plan[object]:
        sizes.append(len(context.images))
        return build_plan(config, context, bundle)

    monkeypatch.setattr("zhcedge.app.detect.build_plan", counting)
    outcome = Outcome(pictures / "frame2.jpg", pictures / "small.png", pictures / "frame10.jpg", pictures, frames=2)
    assert sizes == [4, 1]
    assert [(Path(result.input).name, result.frames) for result in outcome.results] == [
        ("frame2.jpg", 1),
        ("small.png", 1),
        ("frame10.jpg", 1),
        (pictures.name, 2),
    ]
    assert str(outcome.results[0]).startswith(f"{pictures / 'frame2.jpg'}: 1 frame, ")
    assert outcome.code == 65  # of broken.jpg


def test_nothing_of_a_finished_input_is_kept(pictures: Path) -> None:
    Outcome(pictures / "small.png", CLIP, pictures / "frame2.jpg", frames=1)
    kept = [thing for thing in gc.get_objects() if isinstance(thing, Session | CpuArena | Plan)]
    assert kept == []


def command(*words: str) -> list[str]:
    sets = [word for pair in QUICK for word in ("--set", pair)]
    return [sys.executable, "-m", "zhcedge", "detect", *words, *sets]


def test_a_reader_of_standard_output_that_has_gone_ends_it_quietly() -> None:
    with subprocess.Popen(command(str(CLIP), "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline().startswith(b"{")
        child.stdout.close()
        complaints = child.stderr.read().decode()
    assert child.returncode == 141
    assert complaints == ""


def test_ctrl_c_keeps_what_was_found_until_then(tmp_path: Path) -> None:
    words = command("clip:walkers", "--images", str(tmp_path / "drawn"), "--json", str(tmp_path / "found.jsonl"))
    with subprocess.Popen(words, stderr=subprocess.PIPE) as child:
        while not list(tmp_path.glob("drawn/*.jpg")) and child.poll() is None:
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        assert child.stderr is not None
        complaints = child.stderr.read().decode()
    assert (child.returncode, complaints) == (130, "")
    lines = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert [line["frame"] for line in lines] == list(range(len(lines)))
    assert len(list(tmp_path.glob("drawn/*.jpg"))) == len(lines) < 300
