"""The daemon as a process: bad input gives one clear line and its exit code; nothing outlives what should end it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.contract.brokers import (
    Subscriber,
    find_mosquitto,
    free_port,
    running,
    start_amqtt,
    start_mosquitto,
    wait_until,
)
from tests.contract.clips import cut_clip, make_clip

CLIP = Path(__file__).parents[2] / "zhcedge" / "data" / "walkers.mp4"
BUNDLE = Path(__file__).parents[2] / "zhcedge" / "models" / "bundles" / "nanodet-g-416"


def write_config(folder: Path, uri: str = "clip:walkers", **changes: object) -> Path:
    config: dict[str, object] = {
        "device": "test",
        "channels": {"gate": {"source": {"uri": uri}}},
        "pipeline": {"warmup_frames": 2},
        "mqtt": {"enabled": False},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**config, **changes}))
    return path


def daemon(config: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "zhcedge", "run", "-c", str(config), "--log-level", "ERROR", *arguments]


def run(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(daemon(config, *arguments), capture_output=True, text=True, timeout=60, check=False)


def assert_one_clear_line(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("zhc-edge: ")
    for word in words:
        assert word in lines[0]


def damaged(folder: Path, kind: str) -> Path:
    path, data = folder / "clip.mp4", CLIP.read_bytes()
    contents = {
        "empty": b"",
        "text": b"this is no video\n" * 1000,
        "head only": data[:5000],
        "noise": os.urandom(100_000),
    }
    path.write_bytes(contents[kind])
    return path


@pytest.mark.parametrize(
    "kind",
    ["empty", "text", pytest.param("head only", marks=pytest.mark.slow), pytest.param("noise", marks=pytest.mark.slow)],
)
def test_a_file_that_is_no_video_is_exit_65_and_names_the_file(tmp_path: Path, kind: str) -> None:
    assert_one_clear_line(run(write_config(tmp_path, str(damaged(tmp_path, kind)))), 65, "clip.mp4")


def test_a_missing_file_is_exit_66_and_names_it(tmp_path: Path) -> None:
    assert_one_clear_line(run(write_config(tmp_path, str(tmp_path / "absent.mp4"))), 66, "absent.mp4")


def test_an_unknown_bundled_clip_is_exit_66_and_names_those_there_are(tmp_path: Path) -> None:
    assert_one_clear_line(run(write_config(tmp_path, "clip:nothing")), 66, "walkers")


def test_a_changed_model_file_is_exit_65(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(BUNDLE, bundle)
    with (bundle / "model.onnx").open("r+b") as stream:
        stream.seek(1000)
        stream.write(b"\x55")
    assert_one_clear_line(run(write_config(tmp_path, model={"bundle": str(bundle)})), 65, "model.onnx")


def test_a_wrong_number_of_labels_is_exit_65(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(BUNDLE, bundle)
    labels = bundle / "labels.txt"
    labels.write_text(labels.read_text().replace("person\n", "", 1))
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["sha256"]["labels.txt"] = hashlib.sha256(labels.read_bytes()).hexdigest()
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    assert_one_clear_line(run(write_config(tmp_path, model={"bundle": str(bundle)})), 65, "79", "80")


def test_an_unknown_label_is_exit_78_and_suggests_one(tmp_path: Path) -> None:
    assert_one_clear_line(run(write_config(tmp_path, model={"labels": ["persom"]})), 78, "persom", "person")


def test_a_broken_configuration_lists_every_problem_and_is_exit_78(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("device: NOT A SLUG\nchanels: {}\nmqtt: {port: 99999}\n")
    result = run(path)
    assert result.returncode == 78
    assert "Traceback" not in result.stderr
    for word in ("device", "chanels", "channels", "mqtt.port", "config.yaml:2"):
        assert word in result.stderr


def test_an_output_that_cannot_be_made_is_exit_73_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    channels = {"gate": {"source": {"uri": "clip:walkers"}, "sinks": [{"kind": "mp4", "path": "a.mp4"}]}}
    config = write_config(tmp_path, channels=channels, output_dir=str(tmp_path / "file" / "folder"))
    assert_one_clear_line(run(config), 73, "a.mp4")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "file"]


@pytest.mark.slow
def test_a_truncated_clip_gives_the_frames_that_are_there(tmp_path: Path) -> None:
    whole = CLIP.read_bytes()
    moov_first = whole.find(b"moov") < whole.find(b"mdat")
    clip, summary = tmp_path / "cut.mp4", tmp_path / "summary.json"
    clip.write_bytes(whole[: len(whole) * 2 // 3])
    result = run(write_config(tmp_path, str(clip)), "--summary", str(summary))
    if moov_first:
        assert result.returncode == 0, result.stderr
        assert 0 < json.loads(summary.read_text())["frames"] < 300
    else:
        assert_one_clear_line(result, 65, "cut.mp4")


@pytest.mark.slow
def test_no_broker_is_told_once_and_ends_with_exit_69_and_the_number_of_lost_events(tmp_path: Path) -> None:
    port = free_port()
    result = subprocess.run(
        [*daemon(write_config(tmp_path, mqtt={"port": port}))[:-2], "--log-level", "WARNING"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 69
    assert "messages were not delivered" in result.stderr.splitlines()[-1]
    assert len([line for line in result.stderr.splitlines() if f":{port}" in line]) == 2  # the warning, the last word


@contextlib.contextmanager
def started(config: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(daemon(config, *arguments), stderr=subprocess.PIPE, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def live_config(folder: Path, port: int) -> Path:
    channels = {"gate": {"source": {"uri": "clip:walkers", "realtime": True, "loop": True}}}
    return write_config(folder, channels=channels, mqtt={"port": port})


@pytest.fixture
def subscriber(tmp_path: Path) -> Iterator[Subscriber]:
    with (
        running(start_mosquitto if find_mosquitto() else start_amqtt, tmp_path) as broker,
        Subscriber(broker.port, "zhcedge/#") as client,
    ):
        yield client


def phases(subscriber: Subscriber) -> list[str]:
    return [json.loads(payload)["phase"] for payload in subscriber.states()]


def test_a_killed_frame_process_is_started_again_and_open_events_are_ended(
    tmp_path: Path, subscriber: Subscriber
) -> None:
    with started(live_config(tmp_path, subscriber.port)) as process:
        wait_until(lambda: "active" in phases(subscriber), "the active phase")
        (child,) = children_of(process.pid)
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: phases(subscriber).count("active") >= 2, "a second start")
        assert "failed" in phases(subscriber)
        assert children_of(process.pid) != [child]


def test_sigterm_drains_says_goodbye_and_exits_0(tmp_path: Path, subscriber: Subscriber) -> None:
    with started(live_config(tmp_path, subscriber.port)) as process:
        wait_until(lambda: bool(subscriber.payloads("/events")), "an event")
        (child,) = children_of(process.pid)
        process.terminate()
        assert process.wait(30) == 0
        assert not is_alive(child)
    subscriber.wait_for("/available", b"stopped")
    assert phases(subscriber)[-1] == "stopped"
    events = [json.loads(payload) for payload in subscriber.payloads("/events")]
    open_ids = {event["after"]["id"] for event in events if event["type"] == "new"}
    ended_ids = {event["after"]["id"] for event in events if event["type"] == "end"}
    assert open_ids == ended_ids


def test_a_killed_control_process_takes_its_frame_process_with_it(tmp_path: Path, subscriber: Subscriber) -> None:
    with started(live_config(tmp_path, subscriber.port)) as process:
        wait_until(lambda: "active" in phases(subscriber), "the active phase")
        (child,) = children_of(process.pid)
        process.kill()
        process.wait()
        wait_until(lambda: not is_alive(child), "the frame process to end")
        subscriber.wait_for("/available", b"offline")


def events(subscriber: Subscriber) -> list[dict[str, object]]:
    return [json.loads(payload) for payload in subscriber.payloads("/events")]


@pytest.mark.slow
def test_a_broker_that_comes_back_late_still_gets_every_event_in_order(tmp_path: Path) -> None:
    port = free_port()
    clip = cut_clip(CLIP, tmp_path / "short.mp4", 50)
    channels = {"gate": {"source": {"uri": str(clip), "realtime": True}}}
    with started(write_config(tmp_path, channels=channels, mqtt={"port": port})) as process:
        with running(lambda folder: start_mosquitto(folder, port), tmp_path), Subscriber(port, "zhcedge/#") as first:
            wait_until(lambda: "active" in phases(first), "the active phase")
        wait_until(lambda: not children_of(process.pid), "the clip to end")  # with no broker there
        with (
            running(lambda folder: start_mosquitto(folder, port), tmp_path),
            Subscriber(port, "zhcedge/#") as second,
        ):
            assert process.wait(30) == 0
            second.wait_for("/available", b"stopped")
    found = {int(str(event["seq"])): event for event in [*events(first), *events(second)]}
    assert list(range(1, len(found) + 1)) == sorted(found)
    kinds = [(event["type"], event["after"]["id"]) for event in found.values()]  # type: ignore[index]
    assert {i for kind, i in kinds if kind == "new"} == {i for kind, i in kinds if kind == "end"}


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        signal.SIGTERM,
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "delay_s", [pytest.param(0.05, marks=pytest.mark.slow), 0.4, pytest.param(1.0, marks=pytest.mark.slow)]
)
def test_a_signal_to_the_whole_group_at_any_moment_is_a_clean_stop(
    tmp_path: Path, number: signal.Signals, delay_s: float
) -> None:
    config = write_config(tmp_path, channels={"gate": {"source": {"uri": "clip:walkers", "loop": True}}})
    with started(config) as process:
        wait_until(lambda: bool(children_of(process.pid)) or process.poll() is not None, "the frame process")
        time.sleep(delay_s)
        os.killpg(process.pid, number)
        code = process.wait(30)
        assert process.stderr is not None
        assert (code, process.stderr.read()) == (0, b"")


@pytest.mark.slow
def test_a_stop_in_a_slow_warm_up_does_not_wait_for_its_frames(tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "slow.mp4", 30, fps=1)
    channels = {"gate": {"source": {"uri": str(clip), "realtime": True}}}
    config = write_config(tmp_path, channels=channels, pipeline={"warmup_frames": 20})
    with started(config) as process:
        wait_until(lambda: bool(children_of(process.pid)), "the frame process")
        time.sleep(2.0)
        process.terminate()
        assert process.wait(10) == 0


@pytest.mark.slow
def test_a_file_in_the_working_directory_is_not_taken_for_a_library(tmp_path: Path) -> None:
    (tmp_path / "av.py").write_text("raise SystemExit('hijacked')")
    clip = cut_clip(CLIP, tmp_path / "short.mp4", 10)
    code = "import sys; sys.path.remove(''); from zhcedge.cli import main; sys.exit(main(sys.argv[1:]))"
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", code, "run", "-c", str(write_config(tmp_path, str(clip))), "--log-level", "ERROR"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.slow
def test_a_full_outbox_that_loses_an_events_end_is_not_called_delivered(tmp_path: Path, subscriber: Subscriber) -> None:
    clip = cut_clip(CLIP, tmp_path / "short.mp4", 40)
    result = run(write_config(tmp_path, str(clip), outbox={"max_messages": 1}, mqtt={"port": subscriber.port}))
    *before, last = result.stderr.splitlines()
    assert (result.returncode, "outbox.max_messages" in last) == (69, True), result.stderr
    assert "were given up" in before[0]  # told while it happens, and at the end


@pytest.mark.slow
def test_a_frame_process_ended_by_a_nameless_signal_is_started_again(tmp_path: Path, subscriber: Subscriber) -> None:
    with started(live_config(tmp_path, subscriber.port)) as process:
        wait_until(lambda: "active" in phases(subscriber), "the active phase")
        os.kill(children_of(process.pid)[0], signal.SIGRTMIN + 6)
        wait_until(lambda: phases(subscriber).count("active") >= 2, "a second start")


@pytest.mark.slow
def test_closed_standard_streams_are_no_fault(tmp_path: Path) -> None:
    clip = cut_clip(CLIP, tmp_path / "short.mp4", 10)
    words = " ".join(shlex.quote(word) for word in daemon(write_config(tmp_path, str(clip))))
    result = subprocess.run(["sh", "-c", f"{words} <&- >&- 2>&-"], timeout=60, check=False)
    assert result.returncode == 0


def test_outputs_that_cannot_be_written_are_refused_before_the_run(tmp_path: Path) -> None:
    result = run(write_config(tmp_path), "--summary", str(tmp_path / "absent" / "summary.json"))
    assert_one_clear_line(result, 73, "summary.json")
