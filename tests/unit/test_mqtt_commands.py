"""Commands reach the device at a pace that is good for it, every one is answered, and what they set is kept."""

from __future__ import annotations

import base64
import json
import logging
import threading
from dataclasses import dataclass, field

import pytest

from zhcedge.app.mqtt_commands import ANSWER_S, QUEUE_LIMIT, READ_PER_TURN, CommandDispatcher, DeviceControl
from zhcedge.config.schema import Config
from zhcedge.core.delivery import Incoming, Message
from zhcedge.core.errors import MediaError, PipelineError, UsageError, ZhcEdgeError
from zhcedge.publish.topics import Topics

TOPICS = Topics("box")
REPLIES = "zhcedge/client/replies"
SECRET = "hunter2secret"
CAMERA = {"source": {"uri": f"rtsp://viewer:{SECRET}@camera.local/stream", "fps": 5}}


@dataclass
class SimClock:
    """Implements Clock; stands still unless a test moves it."""

    now_ns: int = 5_000_000_000

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return 1_800_000_000_000_000_000 + self.now_ns

    def is_synced(self) -> bool:
        return True


@dataclass
class SimControl:
    """Implements DeviceControl; the frame process answers when the test does."""

    asked: list[tuple[int, str, str, object]] = field(default_factory=list)
    thresholds: dict[str, float] = field(default_factory=dict)
    published: list[Message] = field(default_factory=list)
    rebirths: int = 0
    is_running: bool = True

    def set_threshold(self, camera: str, value: float) -> None:
        if value < 0.3:
            raise UsageError("below the detector's own threshold, 0.3", where=f"camera {camera}")
        self.thresholds[camera] = value

    def frame_command(self, word: str, camera: str, value: object) -> int:
        if not self.is_running:
            raise PipelineError("the frame path is initialising", fix="try again later")
        self.asked.append((len(self.asked) + 1, word, camera, value))
        return len(self.asked)

    def rebirth(self) -> None:
        self.rebirths += 1

    def reload(self) -> int:
        return self.frame_command("reload", "", None)

    def add_camera(self, name: str, channel: dict[str, object]) -> int:
        return self.frame_command("add", name, channel)

    def remove_camera(self, name: str) -> int:
        return self.frame_command("remove", name, None)

    def set_log_level(self, level: str) -> int | None:
        return self.frame_command("log-level", "", level) if self.is_running else None

    def publish(self, message: Message) -> None:
        self.published.append(message)


class Bench:
    """A dispatcher with two cameras and simulated surroundings."""

    def __init__(self, **commands: object) -> None:
        source = {"uri": "clip:walkers", "realtime": True}
        config = Config.model_validate(
            {
                "device": "box",
                "channels": {"gate": {"source": source}, "yard": {"source": {"uri": "rtsp://camera/", "fps": 8}}},
                "mqtt": {"commands": commands},
            }
        )
        self.clock, self.control, self.wakes = SimClock(), SimControl(), 0
        control: DeviceControl = self.control
        self.dispatcher = CommandDispatcher(config, control, self.clock, 0.3, self._wake)
        self.dispatcher.reapply()

    def _wake(self) -> None:
        self.wakes += 1

    def send(self, word: str, payload: bytes | object = b"", camera: str = "gate", correlation: bytes = b"") -> None:
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        topic = TOPICS.command(word, camera)
        reply = REPLIES if correlation else ""
        self.dispatcher.take(Incoming(topic, data, response_topic=reply, correlation=correlation))

    def work(self, later_s: float = 2.0) -> None:
        """A turn of the loop, so much later than the last one."""
        self.clock.now_ns += int(later_s * 1e9)
        self.dispatcher.work()

    def answer(self, error: ZhcEdgeError | None = None, value: object = None) -> None:
        """Of the frame process, to what it was asked last."""
        self.dispatcher.answered(self.control.asked[-1][0], error, value)

    def add(self, name: str = "porch", channel: object = CAMERA) -> None:
        self.send("cameras", {"add": {name: channel}}, camera="", correlation=b"add")
        self.work()

    @property
    def words(self) -> list[tuple[str, str, object]]:
        return [(word, camera, value) for _, word, camera, value in self.control.asked]

    @property
    def answers(self) -> list[tuple[bytes, dict[str, object]]]:
        return [(m.correlation, json.loads(m.payload)) for m in self.control.published if m.topic == REPLIES]

    def last_answer(self) -> dict[str, object]:
        return self.answers[-1][1]

    @property
    def retained(self) -> dict[str, bytes]:
        return {message.topic: message.payload for message in self.control.published if message.retain}


def test_what_the_frame_process_does_is_answered_and_told_when_it_is_done() -> None:
    bench = Bench()
    bench.send("detect", b"OFF", correlation=b"7")
    assert bench.control.asked == []  # nothing happens in the network thread
    bench.work()
    assert bench.words == [("detect", "gate", False)]
    assert (bench.answers, bench.retained) == ([], {})
    bench.answer(value=False)
    ((correlation, said),) = bench.answers
    assert (correlation, said["ok"], said["word"], said["camera"], said["value"]) == (
        b"7",
        True,
        "detect",
        "gate",
        "OFF",
    )
    assert bench.retained == {"zhcedge/box/camera/gate/detect/state": b"OFF"}
    assert bench.dispatcher.done == 1


def test_what_fails_is_answered_with_the_reason_and_changes_no_effect() -> None:
    bench = Bench()
    bench.send("fps", b"5", correlation=b"1")
    bench.work()
    bench.answer(UsageError("it plays a file as fast as it can", where="gate"))
    assert bench.last_answer()["ok"] is False
    assert str(bench.last_answer()["reason"]).startswith("failed: gate: it plays a file")
    assert bench.retained == {}
    assert bench.dispatcher.refused == 1


def test_a_threshold_is_set_here_and_refused_below_the_detectors_own() -> None:
    bench = Bench()
    bench.send("threshold", b"0.6", correlation=b"1")
    bench.work()
    assert bench.control.thresholds == {"gate": 0.6}
    assert bench.last_answer()["value"] == "0.6"
    assert bench.retained == {"zhcedge/box/camera/gate/threshold/state": b"0.6"}
    bench.send("threshold", b"0.1", correlation=b"2")
    bench.work()
    assert bench.last_answer()["ok"] is False
    assert bench.dispatcher.value("threshold", "gate") == 0.6


def test_a_snapshot_is_published_as_the_picture_it_is() -> None:
    bench = Bench()
    bench.send("snapshot", correlation=b"1")
    bench.work()
    bench.answer(value={"jpeg": base64.b64encode(b"\xff\xd8picture").decode(), "sequence": 4})
    (picture,) = [message for message in bench.control.published if message.topic.endswith("/snapshot")]
    assert (picture.payload, picture.retain) == (b"\xff\xd8picture", False)
    assert bench.last_answer()["ok"] is True


@pytest.mark.parametrize("value", [None, {}, {"jpeg": ""}, {"jpeg": "!"}, {"jpeg": 5}])
def test_a_snapshot_without_a_picture_has_failed(value: object) -> None:
    bench = Bench()
    bench.send("snapshot", correlation=b"1")
    bench.work()
    bench.answer(value=value)
    assert bench.last_answer()["ok"] is False


def test_rebirth_is_carried_out_at_most_once_a_second() -> None:
    bench = Bench()
    for _ in range(3):
        bench.send("rebirth", camera="")
        bench.work(0.4)
    assert bench.control.rebirths == 1
    bench.work(0.4)
    assert bench.control.rebirths == 2


def test_what_the_reader_refuses_is_answered_and_counted() -> None:
    bench = Bench()
    bench.send("detect", b"perhaps", correlation=b"1")
    bench.dispatcher.take(Incoming(TOPICS.command("detect", "gate"), b"ON", is_retained=True))
    bench.work()
    assert str(bench.last_answer()["reason"]).startswith("malformed: ")
    assert bench.words == []
    assert bench.dispatcher.refused_by_reason == {"malformed": 1, "retained": 1, "failed": 0, "dropped": 0}


def test_nothing_is_taken_where_commands_are_off() -> None:
    bench = Bench(enabled=False)
    bench.send("detect", b"ON")
    bench.work()
    assert bench.dispatcher.refused_by_reason["not-allowed"] == 1


def test_a_later_command_replaces_the_one_that_waits_and_its_sender_hears_of_it() -> None:
    bench = Bench()
    for number in range(5):
        bench.send("fps", str(number + 1).encode(), correlation=str(number).encode())
    bench.work()
    assert bench.words == [("fps", "gate", 5.0)]
    assert [correlation for correlation, _ in bench.answers] == [b"0", b"1", b"2", b"3"]
    assert all(str(said["reason"]).startswith("replaced: ") for _, said in bench.answers)


def test_a_target_is_asked_again_only_when_it_has_answered_and_others_are_not_held_up() -> None:
    bench = Bench()
    bench.send("detect", b"OFF")
    bench.work()
    bench.send("detect", b"ON")
    bench.send("detect", b"OFF", camera="yard")
    bench.work()
    assert bench.words == [("detect", "gate", False), ("detect", "yard", False)]
    bench.dispatcher.answered(1, None, False)
    bench.work()
    assert bench.words[2:] == [("detect", "gate", True)]


def test_a_flood_costs_a_turn_no_more_than_its_share_and_the_last_one_wins() -> None:
    bench = Bench()
    count = 10_000

    def flood() -> None:
        for number in range(count):
            bench.send("fps", str(number % 1000).encode())

    thread = threading.Thread(target=flood)
    thread.start()
    thread.join()
    assert bench.dispatcher.dropped == count - QUEUE_LIMIT
    turns = 0
    while bench.wakes:
        bench.wakes = 0
        asked = len(bench.control.asked)
        bench.work(0.001)
        turns += 1
        assert len(bench.control.asked) <= asked + 1
    assert turns == QUEUE_LIMIT // READ_PER_TURN
    assert len(bench.control.asked) == 1  # it has not answered
    bench.answer()
    bench.work()
    assert bench.words[-1] == ("fps", "gate", float((count - 1) % 1000))


def test_a_flood_of_refusals_is_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            bench.send("detect", SECRET.encode())
            bench.work(0.01)
        assert len(caplog.records) == 1
        bench.send("detect", b"?")
        bench.work(10.0)
    assert len(caplog.records) == 2
    assert "99 more" in caplog.records[-1].getMessage()
    assert bench.dispatcher.refused == 101
    assert SECRET not in caplog.text


def test_an_answer_that_does_not_come_is_given_after_a_while_and_a_late_success_still_counts() -> None:
    bench = Bench()
    bench.send("detect", b"OFF", correlation=b"1")
    bench.work()
    bench.work(ANSWER_S - 0.1)
    assert bench.answers == []
    bench.work(0.2)
    assert bench.last_answer()["ok"] is False
    bench.send("fps", b"3")
    bench.work()
    bench.dispatcher.answered(1, None, False)
    assert len(bench.answers) == 1
    assert bench.dispatcher.value("detect", "gate") is False
    assert bench.retained["zhcedge/box/camera/gate/detect/state"] == b"OFF"


def test_a_late_failure_is_not_answered_a_second_time() -> None:
    bench = Bench()
    bench.send("detect", b"OFF", correlation=b"1")
    bench.work()
    bench.work(ANSWER_S)
    bench.dispatcher.answered(1, MediaError("at last"))
    assert len(bench.answers) == 1
    assert bench.dispatcher.refused == 1


def test_the_answer_to_somebody_elses_question_is_ignored() -> None:
    bench = Bench()
    bench.dispatcher.answered(77, None)
    bench.dispatcher.answered(78, MediaError("x"))
    assert (bench.control.published, bench.dispatcher.done, bench.dispatcher.refused) == ([], 0, 0)


def test_effects_tell_the_configuration_until_a_command_has_changed_it() -> None:
    bench = Bench()

    def effects() -> dict[str, bytes]:
        return {
            message.topic.removeprefix("zhcedge/box/camera/"): message.payload for message in bench.dispatcher.effects()
        }

    before = {"gate/detect/state": b"ON", "gate/threshold/state": b"0.3", "gate/fps/state": b"0"}
    yard = {"yard/detect/state": b"ON", "yard/threshold/state": b"0.3", "yard/fps/state": b"8"}
    assert effects() == before | yard
    assert all(message.retain and message.qos == 1 for message in bench.dispatcher.effects())
    bench.send("fps", b"2.5")
    bench.work()
    bench.answer()
    assert effects() == before | yard | {"gate/fps/state": b"2.5"}


# -- restarts of the frame process -----------------------------------------------------------------------------
def test_values_are_given_to_the_next_frame_process_once() -> None:
    bench = Bench()
    for word, payload in (("detect", b"OFF"), ("fps", b"4"), ("threshold", b"0.5")):
        bench.send(word, payload)
        bench.work()
        if word != "threshold":
            bench.answer()
    bench.dispatcher.frame_process_ended()
    bench.control.asked.clear()
    bench.dispatcher.reapply("gate")  # it has begun, and the run is not active yet
    assert bench.words == []
    bench.dispatcher.reapply()
    assert bench.words == [("detect", "gate", False), ("fps", "gate", 4.0)]
    bench.dispatcher.reapply()
    assert len(bench.words) == 2
    for number in (1, 2):
        bench.dispatcher.answered(number, None)
    bench.dispatcher.reapply("gate")  # its camera was away
    assert bench.words[2:] == bench.words[:2]


def test_what_was_asked_of_a_frame_process_that_ended_is_answered_as_failed() -> None:
    bench = Bench()
    bench.send("detect", b"OFF", correlation=b"1")
    bench.work()
    bench.dispatcher.frame_process_ended()
    assert bench.last_answer()["ok"] is False
    assert bench.dispatcher.value("detect", "gate") is True
    bench.control.is_running = False
    bench.send("detect", b"OFF", correlation=b"2")
    bench.work()
    assert "try again later" in str(bench.last_answer()["reason"])


def test_a_newer_command_wins_over_what_is_repeated() -> None:
    bench = Bench()
    bench.send("detect", b"OFF")
    bench.work()
    bench.answer()
    bench.dispatcher.frame_process_ended()
    bench.control.asked.clear()
    bench.send("detect", b"ON")
    bench.work()
    bench.dispatcher.reapply()
    assert bench.words == [("detect", "gate", True)]


# -- cameras ---------------------------------------------------------------------------------------------------
def test_cameras_are_not_added_unless_that_is_allowed() -> None:
    bench = Bench()
    bench.add()
    assert (bench.words, str(bench.last_answer()["reason"])[:12]) == ([], "not-allowed:")


@pytest.fixture
def open_bench() -> Bench:
    return Bench(allow=["cameras", "detect", "fps"])


def test_a_camera_that_was_added_takes_commands_has_effects_and_comes_back(open_bench: Bench) -> None:
    bench = open_bench
    bench.add()
    assert bench.words == [("add", "porch", CAMERA)]
    bench.answer()
    assert bench.last_answer()["ok"] is True
    assert bench.dispatcher.cameras == ("gate", "yard", "porch")
    assert bench.retained["zhcedge/box/camera/porch/fps/state"] == b"5"
    bench.send("detect", b"OFF", camera="porch")
    bench.work()
    bench.answer()
    bench.dispatcher.frame_process_ended()
    bench.control.asked.clear()
    bench.dispatcher.reapply()
    assert bench.words == [("add", "porch", CAMERA)]  # its value would find no camera yet
    bench.answer()
    assert bench.words[1:] == [("detect", "porch", False)]


def test_a_camera_that_was_removed_leaves_no_effects_and_stays_away(open_bench: Bench) -> None:
    bench = open_bench
    bench.send("cameras", {"remove": "gate"}, camera="", correlation=b"1")
    bench.work()
    bench.answer()
    assert bench.dispatcher.cameras == ("yard",)
    assert {payload for topic, payload in bench.retained.items() if "/gate/" in topic} == {b""}
    bench.send("detect", b"ON", correlation=b"2")
    bench.send("cameras", {"remove": "gate"}, camera="", correlation=b"3")
    bench.work()
    assert [said["ok"] for _, said in bench.answers] == [True, False, False]
    bench.dispatcher.frame_process_ended()
    bench.control.asked.clear()
    bench.dispatcher.reapply()
    assert bench.words == [("remove", "gate", None)]


def test_a_camera_that_was_replaced_is_replaced_again_in_the_next_frame_process(open_bench: Bench) -> None:
    bench = open_bench
    bench.send("cameras", {"remove": "gate"}, camera="")
    bench.send("cameras", {"add": {"gate": CAMERA}}, camera="")
    bench.work()
    assert bench.words == [("remove", "gate", None)]  # one after the other
    bench.answer()
    bench.work()
    bench.answer()
    assert bench.words[1:] == [("add", "gate", CAMERA)]
    assert bench.dispatcher.cameras == ("yard", "gate")
    bench.dispatcher.frame_process_ended()
    bench.control.asked.clear()
    bench.dispatcher.reapply()
    assert bench.words == [("remove", "gate", None), ("add", "gate", CAMERA)]


@pytest.mark.parametrize(
    ("name", "channel", "expected"),
    [
        ("Front Door", CAMERA, "lower-case"),
        ("a/b", CAMERA, "lower-case"),
        ("\ud800", CAMERA, "lower-case"),
        ("--", CAMERA, "no topic"),
        ("gate", CAMERA, "already"),
        ("gate-", CAMERA, "already"),  # the same topic
        ("porch", {}, "source"),
        ("porch", {"source": {"uri": "clip:walkers"}, "secret": 1}, "secret"),
        ("porch", {"source": {"uri": "clip:walkers", "fps": "fast"}}, "fps"),
        ("porch", {"source": {"uri": "/etc/passwd"}}, "no file"),
        ("porch", {"source": {"uri": "file.mp4"}}, "no file"),
        ("porch", {"source": {"uri": "rtsp://evil/", "username": "u", "password_file": "/etc/shadow"}}, "no file"),
        ("porch", {"source": {"uri": "rtsps://camera/", "ca_file": "/etc/x"}}, "no file"),
        ("porch", {**CAMERA, "sinks": [{"kind": "mp4", "path": "/etc/cron.d/x"}]}, "no file"),
    ],
)
def test_a_camera_that_is_not_valid_or_names_a_file_is_refused(
    open_bench: Bench, name: str, channel: object, expected: str
) -> None:
    open_bench.add(name, channel)
    assert open_bench.words == []
    assert expected in str(open_bench.last_answer()["reason"])


def test_a_cameras_password_is_in_no_answer_state_or_log(open_bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    address = CAMERA["source"]["uri"]
    with caplog.at_level(logging.DEBUG):
        open_bench.add()
        open_bench.answer(MediaError(f"no answer from {address}", where=str(address)))
        open_bench.add(channel={"source": {"uri": address, "fps": address}})
        open_bench.add(channel={"source": {"uri": address, str(address): 1}})
        open_bench.add(str(address))
        open_bench.add()
        open_bench.answer()
    assert [said["ok"] for _, said in open_bench.answers] == [False] * 4 + [True]
    said = b"".join(message.payload for message in [*open_bench.control.published, *open_bench.dispatcher.effects()])
    assert SECRET.encode() not in said
    assert SECRET not in caplog.text
