"""A box in an MQTT event is the box of the frame process, bit for bit: same clip, same frame, same float32 numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import yaml

from tests.contract.brokers import Subscriber, find_mosquitto, running, start_amqtt, start_mosquitto
from tests.contract.clips import cut_clip
from zhcedge.app.wiring import RunContext, build_plan
from zhcedge.config.schema import Config
from zhcedge.core.lifecycle import Lifecycle
from zhcedge.pipeline.segment import Segment
from zhcedge.service.clock import SystemClock

CLIP = Path(__file__).parents[2] / "zhcedge" / "data" / "walkers.mp4"


def boxes_of_the_frame_process(channels: object) -> dict[int, set[bytes]]:
    """Boxes as the ring carries them, by sequence number."""
    segment = Segment()
    config = Config.model_validate({"channels": channels})
    with build_plan(config, RunContext(segment, SystemClock(), Lifecycle())) as plan:
        plan.warm_up().process()
    frames = [record for record in segment.ring.drain() if not record.is_end]
    return {record.info.sequence: {box.tobytes() for box in record.detections["box"]} for record in frames}


def test_a_box_reaches_a_subscriber_bit_for_bit(tmp_path: Path) -> None:
    channels = {"gate": {"source": {"uri": str(cut_clip(CLIP, tmp_path / "short.mp4", 60))}}}
    expected = boxes_of_the_frame_process(channels)
    with (
        running(start_mosquitto if find_mosquitto() else start_amqtt, tmp_path) as broker,
        Subscriber(broker.port, "zhcedge/#") as client,
    ):
        config = tmp_path / "config.yaml"
        config.write_text(yaml.safe_dump({"device": "t", "channels": channels, "mqtt": {"port": broker.port}}))
        subprocess.run([sys.executable, "-m", "zhcedge", "run", "-c", config], check=True, timeout=120)
        client.wait_for("/available", b"stopped")
        events = [json.loads(payload)["after"] for payload in client.payloads("/events")]
    assert len(events) > 20
    for event in events:
        assert np.array(event["box"], np.float32).tobytes() in expected[event["frame_sequence"]]
        assert [float(np.float32(value)) for value in event["box"]] == event["box"]
