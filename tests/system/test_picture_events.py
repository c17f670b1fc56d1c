"""What is wrong with a camera's picture becomes an event at the broker, and its end, too."""

from __future__ import annotations

import json
from pathlib import Path

import av
import numpy as np
import pytest

from tests.contract.brokers import Subscriber, find_mosquitto, running, start_mosquitto, wait_until
from tests.system.test_control_socket import site
from zhcedge.app.channels import clip_path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed"),
]

FPS, SECONDS = 10, 30


def covered_for_a_while(path: Path) -> None:
    """The bundled clip with something before the lens from second 10 to 20."""
    chance = np.random.default_rng(1)
    with av.open(str(clip_path("walkers"))) as clip, av.open(str(path), "w") as out:
        frames = [frame.to_ndarray(format="yuv420p") for frame in clip.decode(video=0)][:100]
        stream = out.add_stream("libx264", rate=FPS, options={"preset": "ultrafast"})
        stream.height, stream.width = frames[0].shape[0] * 2 // 3, frames[0].shape[1]
        stream.pix_fmt = "yuv420p"
        for number in range(FPS * SECONDS):
            picture = frames[number % len(frames)].copy()
            if 10 * FPS <= number < 20 * FPS:
                picture[: stream.height] = 90 + chance.integers(0, 3)
                picture[stream.height :] = 128
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="yuv420p")))
        out.mux(stream.encode())


def test_a_covered_camera_is_an_event_with_a_beginning_and_an_end(tmp_path: Path) -> None:
    covered_for_a_while(tmp_path / "scene.mp4")
    channel = {
        "source": {"uri": str(tmp_path / "scene.mp4"), "realtime": True, "loop": True},
        "picture_health": {"enabled": True, "hold_s": 2.0},
    }
    with (
        running(start_mosquitto, tmp_path) as broker,
        Subscriber(broker.port, "zhcedge/#") as client,
        site(tmp_path, mqtt={"port": broker.port}, channels={"gate": channel}) as here,
    ):

        def told() -> list[tuple[str, str]]:
            events = [event for event in client.events() if event["after"]["kind"] == "picture"]
            return [(event["type"], event["after"]["label"]) for event in events]

        wait_until(lambda: ("new", "covered") in told(), "the beginning")
        wait_until(lambda: told()[:2] == [("new", "covered"), ("end", "covered")], "the end")
        pictures = [json.loads(said)["picture"] for said in client.payloads("camera/gate/status")]
        assert "covered" in pictures
        assert here.status()["ledger"]["verdict"] == "pass"  # type: ignore[index]
