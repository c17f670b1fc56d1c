"""What the control process may ask of a running frame process: channels that come, go and change; snapshots.

A command is {"command": number, "do": word, "name": channel, "value": value}; the answer {"done": number, "value":
value} or {"refused": number, "error": facts}. Words, what they take, and what comes back:

- add: the channel's configuration; remove, pause, resume: nothing;
- detect: true or false; the same;
- fps: frames a second, 0 for as they come; the same;
- snapshot: nothing, or {"crops": [[left, top, right, bottom], ...]}, shares of the picture from 0 to 1, with up to
  MAX_CROPS parts that are wanted beside it; {"jpeg": base64, "sequence": of the frame, "capture_time_ns": wall clock,
  "crops": [{"jpeg": base64, "rectangle": [left, top, width, height] in pixels}, or null for one that is too large]};
- log-level: DEBUG, INFO, WARNING or ERROR, of this process and no channel; nothing. In every phase;
- clip: {"key": of an event, "start_ns": capture time of its first picture, "end_ns": of its last one, null while it
  goes on}; nothing. It is sent when the event begins and when it ends; the clip comes by itself (app/frame_clips.py).

Settings last as long as the channel and this process do: the control process repeats them after a restart.
"""

from __future__ import annotations

import base64
import queue
import threading
from collections.abc import Callable

from zhcedge.app.channels import ChannelFactory
from zhcedge.app.frame_clips import FrameClips
from zhcedge.config.load import parse_channel
from zhcedge.core.errors import PipelineError, UsageError, ZhcEdgeError
from zhcedge.pipeline.channel import ChannelParts
from zhcedge.pipeline.plan import Runtime
from zhcedge.pipeline.snapshots import Area, Snapshot
from zhcedge.service.log import set_log_level

Send = Callable[[dict[str, object]], None]


def error_facts(error: ZhcEdgeError) -> dict[str, object]:
    """An error of ours as it travels over the control pipe."""
    return {"what": error.what, "where": error.where, "fix": error.fix, "code": error.exit_code}


_SLOW = ("add", "snapshot")  # they wait for a camera or a frame: each in a thread of its own
_WORDS = ("add", "remove", "pause", "resume", "detect", "fps", "snapshot", "clip", "log-level")


class ChannelCommands:
    """Carries out commands in a thread of its own, one after the other; what may take its time in another one.

    Args:
        send: takes answers; any thread.
        clips: of all channels.
    """

    def __init__(self, send: Send, clips: FrameClips) -> None:
        self._send = send
        self._commands: queue.SimpleQueue[dict[str, object]] = queue.SimpleQueue()
        self._runtime: Runtime[object] | None = None
        self._factory: ChannelFactory | None = None
        self._clips = clips

    def submit(self, command: dict[str, object]) -> None:
        """Queue a command. Any thread.

        The log level is changed at once: who asks for it may want to know why the run does not become active.
        """
        if command.get("do") == "log-level":
            self._answer(command)
        else:
            self._commands.put(command)

    def use_factory(self, factory: ChannelFactory) -> None:
        """What makes the parts of new channels."""
        self._factory = factory

    def start(self, runtime: Runtime[object]) -> None:
        """The run is about to be active: from now on commands are carried out."""
        self._runtime = runtime
        threading.Thread(target=self._work, name="channel commands", daemon=True).start()

    def _work(self) -> None:
        while True:
            command = self._commands.get()
            word = command.get("do")
            if word in _SLOW:
                threading.Thread(target=self._answer, args=(command,), name=f"channel {word}", daemon=True).start()
            else:
                self._answer(command)

    def _answer(self, command: dict[str, object]) -> None:
        number = command.get("command")
        try:
            value = self._carry_out(command)
        except ZhcEdgeError as error:
            self._send({"refused": number, "error": error_facts(error)})
        except Exception as error:  # noqa: BLE001  the thread must live on; the control process hears of it
            what = f"{type(error).__name__}: {error}"
            bug = PipelineError(what, where="channel command", fix="report this as a bug")
            self._send({"refused": number, "error": error_facts(bug)})
        else:
            self._send({"done": number, "value": value})

    def _carry_out(self, command: dict[str, object]) -> object:
        runtime, name = self._runtime, str(command.get("name"))
        word, value = command.get("do"), command.get("value")
        if word == "log-level":
            set_log_level(str(value))
            return None
        if runtime is None or self._factory is None:
            raise UsageError("the run is not active", fix="try again when it is")
        if word == "add":
            runtime.roster.add(name, lambda index: self._parts(index, name, value))
        elif word == "remove":
            runtime.roster.remove(name)
            self._clips.forget(name)
        elif word == "pause":
            runtime.roster.pause(name)
        elif word == "resume":
            runtime.roster.resume(name)
        elif word == "detect":
            return runtime.live.detect(name, _as_flag(value, name))
        elif word == "fps":
            return runtime.live.limit_fps(name, _as_number(value, name))
        elif word == "clip":
            self._clips.ask(name, value)
        elif word == "snapshot":
            return _as_value(runtime.live.snapshot(name, _as_areas(value, name)))
        else:
            raise UsageError(f"there is no command {word!r}", fix=f"use one of {', '.join(_WORDS)}")
        return None

    def _parts(self, index: int, name: str, channel: object) -> ChannelParts[object]:
        if self._factory is None:
            raise UsageError("the run is not active", fix="try again when it is")
        return self._factory.parts(index, name, parse_channel(name, channel))


def _as_flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{value!r} is neither true nor false", where=name)
    return value


def _as_number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"{value!r} is no number", where=name)
    return value


def _as_areas(value: object, name: str) -> list[Area]:
    wanted = value.get("crops", []) if isinstance(value, dict) else []
    areas: list[Area] = []
    for area in wanted if isinstance(wanted, list) else [wanted]:
        if not isinstance(area, list) or len(area) != 4:
            raise UsageError(f"{area!r} is no part of a picture", where=name, fix="send left, top, right, bottom")
        left, top, right, bottom = (_as_number(edge, name) for edge in area)
        areas.append((left, top, right, bottom))
    return areas


def _as_value(snapshot: Snapshot) -> dict[str, object]:
    return {
        "jpeg": _as_text(snapshot.jpeg),
        "sequence": snapshot.info.sequence,
        "capture_time_ns": snapshot.info.capture_time_ns,
        "crops": [
            None
            if crop is None
            else {
                "jpeg": _as_text(crop.jpeg),
                "rectangle": [
                    crop.rectangle.left_px,
                    crop.rectangle.top_px,
                    crop.rectangle.width_px,
                    crop.rectangle.height_px,
                ],
            }
            for crop in snapshot.crops
        ],
    }


def _as_text(jpeg: bytes) -> str:
    return base64.b64encode(jpeg).decode("ascii")
