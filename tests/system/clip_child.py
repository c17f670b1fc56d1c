"""A process that writes and indexes clips until it is killed: python clip_child.py VIDEO STORAGE.

It plays the video over and over and makes an event every quarter second; a line on standard output says that the first
clip is complete.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

from tests.contract.clip_scene import Scene
from zhcedge.app.clips import ClipKeeper
from zhcedge.app.frame_clips import clip_message
from zhcedge.config.schema import Config
from zhcedge.core.events import Event, EventSnapshot, EventType
from zhcedge.core.types import FrameInfo
from zhcedge.media.clip_recorder import ClipRecorder
from zhcedge.service.clock import SystemClock
from zhcedge.store.media_files import clips_folder


def main(video: Path, storage: Path) -> None:
    clips = {"enabled": True, "before_s": 1, "after_s": 0.5, "max_s": 3}
    config = Config.model_validate(
        {"channels": {"gate": {"source": {"uri": str(video)}, "clips": clips}}, "storage": {"dir": storage}}
    )
    numbers = itertools.count()
    with Scene(video, clips_folder(storage, "gate"), max_s=3.0, is_looped=True) as scene:

        def send(word: str, camera: str, value: object) -> int:
            assert isinstance(value, dict)
            scene.recorder.ask(camera, value["key"], value["start_ns"], value["end_ns"])
            return next(numbers)

        keeper = ClipKeeper(config, f"boot{time.time_ns()}", SystemClock(), send, lambda: None)
        settings = scene.recorder._channels["gate"]._settings
        scene.recorder.close()
        scene.recorder = ClipRecorder(lambda clip: keeper.take(clip_message(clip)))
        scene.recorder.add("gate", scene.ring, settings)
        keeper.start()
        is_first = True
        for event in itertools.count():
            first = len(scene.captured)
            scene.play(5, pause_s=0.003)
            keeper.event(_event(EventType.NEW, event, scene.captured[first]))
            scene.play(20, pause_s=0.003)
            keeper.event(_event(EventType.END, event, scene.captured[first], scene.captured[-1]))
            scene.play(25 if event % 3 else 1, pause_s=0.003)
            if is_first and any(news.ranges for news in keeper.turn()):
                is_first = False
                print("ready", flush=True)


def _event(type: EventType, number: int, start_ns: int, end_ns: int | None = None) -> Event:
    frame = FrameInfo(0, number, start_ns, 0)
    after = EventSnapshot(
        id=str(number),
        camera="gate",
        label="person",
        score=0.5,
        top_score=0.5,
        box=(0.0, 0.0, 1.0, 1.0),
        frame=frame,
        start_time_ns=start_ns,
        end_time_ns=end_ns,
    )
    return Event(type, None, after)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
