"""How long after a frame was read its event reaches a subscriber: the daemon, a real broker, a client in this process.

The subscriber notes its own monotonic clock when a message arrives; the daemon's trace says when the frame had been
read. `new` messages are left out: the tracker holds an object back until it has seen it in several frames.
"""

from __future__ import annotations

import json
import signal
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import paho.mqtt.client as mqtt
import yaml
from paho.mqtt.enums import CallbackAPIVersion

from zhcedge.app.children import last_line, running
from zhcedge.app.demo_broker import HOST, DemoBroker, open_broker
from zhcedge.app.interpreter import command_for
from zhcedge.core.errors import BrokerError, PipelineError


def publish_latency(clip: str, profile: str) -> dict[str, float]:
    """Milliseconds from a frame's read until its event is published, and until it has arrived at a subscriber.

    Returns {"published_p50", "published_p99", "arrived_p50", "arrived_p99", "count"}.

    Raises BrokerError or BackendUnavailableError without a broker, PipelineError when the daemon fails.
    """
    with tempfile.TemporaryDirectory(prefix="zhc-edge-bench-") as name:
        folder = Path(name)
        with open_broker("auto", folder) as broker:
            trace, log = folder / "trace.json", folder / "daemon.log"
            command = [*command_for("zhcedge"), "run", "-c", str(_write_config(folder, broker, clip, profile))]
            arrivals: dict[int, float] = {}
            # The child comes first: it must be started while this process has no thread of its own.
            with running([*command, "--trace", str(trace)], log, orphan_signal=signal.SIGTERM, grace_s=10.0) as daemon:
                client = _subscribe(broker, arrivals)
                status = daemon.wait()
                time.sleep(0.2)
                client.loop_stop()
            if status:
                raise PipelineError(f"the daemon ended with exit code {status}: {last_line(log)}", where="bench")
            read, published = _ends_ms(trace, "read"), _ends_ms(trace, "publish")
    updates = [frame for frame in arrivals if frame in read and frame in published]
    result = {"count": float(len(updates))}
    for name, times in (("published", published), ("arrived", arrivals)):
        latencies = np.array([times[frame] - read[frame] for frame in updates])
        result |= {f"{name}_p{percent}": float(np.percentile(latencies, percent)) for percent in (50, 99)}
    return result


def _write_config(folder: Path, broker: DemoBroker, clip: str, profile: str) -> Path:
    path = folder / "bench.yaml"
    config = {
        "device": "bench",
        "profile": profile,
        "channels": {"bench": {"source": {"uri": clip, "realtime": True}}},
        "events": {"update_interval_ms": 100},
        "mqtt": {"host": HOST, "port": broker.port},
    }
    path.write_text(yaml.safe_dump(config))
    return path


def _subscribe(broker: DemoBroker, arrivals: dict[int, float]) -> mqtt.Client:
    """A client whose thread notes when the first `update` of each frame arrives, monotonic milliseconds."""
    is_ready = threading.Event()

    def on_message(client: mqtt.Client, userdata: object, message: mqtt.MQTTMessage) -> None:
        now_ms = time.monotonic_ns() / 1e6
        event = json.loads(message.payload)
        if event["type"] == "update":
            arrivals.setdefault(event["after"]["frame_sequence"], now_ms)

    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="zhc-edge-bench-subscriber")
    client.on_message = on_message
    client.on_connect = lambda client, *_: client.subscribe("zhcedge/bench/events", qos=1)
    client.on_subscribe = lambda *_: is_ready.set()
    client.connect(HOST, broker.port)
    client.loop_start()
    if not is_ready.wait(10.0):
        raise BrokerError("the benchmark's broker does not confirm a subscription")
    return client


def _ends_ms(trace: Path, name: str) -> dict[int, float]:
    """When each frame's span of this name ended; the active phase comes after warm-up in the trace and wins."""
    events = json.loads(trace.read_text())["traceEvents"]
    return {
        event["args"]["frame"]: (event["ts"] + event["dur"]) / 1e3
        for event in events
        if event["ph"] == "X" and event["name"] == name
    }
