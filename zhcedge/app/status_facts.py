"""What `zhc-edge status` is told: everything that the control process knows about itself and the frame process."""

from __future__ import annotations

from collections.abc import Mapping

from zhcedge.app.device import Device
from zhcedge.app.publisher import Publisher
from zhcedge.config.delivery import MqttConfig
from zhcedge.config.schema import Config
from zhcedge.core.delivery import Alert
from zhcedge.core.events import EventType
from zhcedge.core.types import ViolationKind
from zhcedge.pipeline.channel import ChannelState
from zhcedge.pipeline.segment import Counters, Segment

_PROTOCOLS = {0: "", 3: "3.1.1", 5: "5"}


def status_facts(config: Config, device: Device, segment: Segment) -> dict[str, object]:
    """For JSON. The control loop's thread; changes nothing, waits for nothing.

    Times are seconds since the epoch, rates frames a second between the frame process's last two reports (2 s).
    Counters of events, messages and commands begin with the daemon, those of frames and of the ledger with the frame
    process.
    """
    state, publisher = device.facts, device.publisher
    return {
        "device": config.device,
        "phase": state.phase.value,
        "version": state.version,
        "uptime_s": round(state.uptime_s, 1),
        "boot_id": state.boot_id,
        "profile": state.profile,
        "model": state.model,
        "model_sha256": state.model_sha256,
        "log_level": device.log_level,
        "degraded": list(state.degraded),
        "ledger": ledger_facts(segment.counters),
        "cameras": {name: _camera(device, name) for name in state.cameras},
        "detections_dropped": segment.ring.dropped,
        "broker": _broker(publisher, config.mqtt) if publisher is not None else None,
        "outbox": _outbox(publisher) if publisher is not None else None,
        "commands_refused": device.commands_refused,
        "events": {kind.value: device.events.counts[kind] for kind in EventType},
        "alerts": [_alert(time_ns, alert) for time_ns, alert in publisher.recent_alerts] if publisher else [],
    }


def ledger_facts(counters: Counters) -> dict[str, object]:
    """The live guard's account, with the verdict that the counters give (pipeline/ledger.py has its rules)."""
    violations = {kind.value: counters[f"violations: {kind.value}"] for kind in ViolationKind}
    planted, seen, blind = (counters[name] for name in ("canaries_planted", "canaries_seen", "kinds_not_visible"))
    is_proved = bool(counters["heartbeat"]) and planted > 0 and seen == planted and not blind
    verdict = "fail" if any(violations.values()) else "pass" if is_proved else "unproved"
    return {
        "verdict": verdict,
        "frames": counters["heartbeat"],
        "violations": {kind: count for kind, count in violations.items() if count},
        "canaries_planted": planted,
        "canaries_seen": seen,
        "kinds_not_visible": blind,
    }


def _camera(device: Device, name: str) -> dict[str, object]:
    state, reason, since_ns = device.channel_state(name)
    flow = device.flow.get(name)
    return {
        "state": state.value,
        "reason": reason,
        "since": _seconds(since_ns) if since_ns else None,
        "fps_in": round(flow.fps_in, 2) if flow else 0.0,
        # A paused camera's frames come and are thrown away, which is no loss.
        "fps_out": round(flow.fps_out, 2) if flow and state is not ChannelState.PAUSED else 0.0,
        "dropped": flow.dropped if flow else 0,
        "detect": device.live_value("detect", name),
        "threshold": device.live_value("threshold", name),
        "fps": device.live_value("fps", name),
    }


def _broker(publisher: Publisher, mqtt: MqttConfig) -> dict[str, object]:
    server, protocol = publisher.connection
    return {
        "connected": bool(server),
        "server": server or f"{mqtt.host}:{mqtt.port}",
        "protocol": _PROTOCOLS.get(protocol, str(protocol)),
        "reconnects": publisher.reconnects,
        "problem": publisher.problem,
    }


def _outbox(publisher: Publisher) -> dict[str, object]:
    outbox = publisher.outbox
    return {
        "depth": outbox.depth,
        "dropped": outbox.dropped,
        "lost": outbox.lost,
        "refused": outbox.refused,
        "durable": outbox.is_durable,
        "flash_bytes": outbox.flash_bytes,
    }


def _alert(time_ns: int, alert: Alert) -> Mapping[str, object]:
    return {
        "time": _seconds(time_ns),
        "code": alert.code,
        "text": alert.text,
        "severity": alert.severity,
        "over": alert.is_over,
    }


def _seconds(time_ns: int) -> float:
    return round(time_ns / 1e9, 6)
