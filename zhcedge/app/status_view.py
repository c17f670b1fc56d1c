"""The status for people: one screen of aligned text, or one line. Pure.

The facts come from a daemon that may be of another version: what is missing shows as nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from zhcedge.core.printing import printable

_ALERTS = 5  # on the screen; --json has all
_LABEL = 10
_MOST = 2**53


def status_lines(facts: Mapping[str, object]) -> list[str]:
    """One screen. `facts` are those of status_facts."""
    degraded = [_text(reason) for reason in _list(facts, "degraded")]
    lines = [
        _row("device", f"{_of(facts, 'device')}  zhc-edge {_of(facts, 'version')}, up {_duration(facts)}"),
        _row("phase", _of(facts, "phase") + (", degraded" if degraded else "")),
        *(_row("", reason) for reason in degraded),
        _row("runs", f"{_of(facts, 'model')} on {_of(facts, 'profile')}, log level {_of(facts, 'log_level')}"),
        _row("ledger", _ledger(_map(facts, "ledger"))),
        _row("broker", _broker(facts)),
        _row("outbox", _outbox(facts)),
        _row("events", _counts(_map(facts, "events")) + _refused(facts)),
        "",
        *_table(_cameras(_map(facts, "cameras"))),
    ]
    alerts = [alert for alert in _list(facts, "alerts") if isinstance(alert, Mapping)]
    if alerts:
        lines += ["", *(_alert(alert) for alert in alerts[-_ALERTS:])]
    return lines


def status_line(facts: Mapping[str, object]) -> str:
    """One line, for a log: "active  cameras 2 of 3 up  fps 29.9  outbox 0  ..."."""
    cameras = [camera for camera in _map(facts, "cameras").values() if isinstance(camera, Mapping)]
    up = sum(camera.get("state") == "up" for camera in cameras)
    fps = sum(_number(camera, "fps_out") for camera in cameras)
    parts = [
        datetime.now().strftime("%H:%M:%S"),
        _of(facts, "phase"),
        f"cameras {up} of {len(cameras)} up",
        f"fps {fps:.1f}",
        f"events {_counts(_map(facts, 'events'))}",
        f"broker {_broker(facts)}",
        f"outbox {_number(_map(facts, 'outbox'), 'depth'):.0f}",
        f"ledger {_of(_map(facts, 'ledger'), 'verdict')}",
    ]
    return "  ".join(parts)


def _row(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}".rstrip()


def _ledger(ledger: Mapping[str, object]) -> str:
    violations = _counts(_map(ledger, "violations"))
    planted, seen = _number(ledger, "canaries_planted"), _number(ledger, "canaries_seen")
    found = f"violations: {violations}" if violations else "no violation"
    frames = f"{_number(ledger, 'frames'):.0f} frames"
    return f"{_of(ledger, 'verdict')}; {found} in {frames}; canaries {seen:.0f} of {planted:.0f} seen"


def _broker(facts: Mapping[str, object]) -> str:
    broker = _map(facts, "broker")
    if not broker:
        return "none (mqtt.enabled is false)"
    reconnects = f", {_number(broker, 'reconnects'):.0f} reconnects"
    if not broker.get("connected"):
        problem = _of(broker, "problem") or f"not connected to {_of(broker, 'server')}"
        return f"{problem}{reconnects}"
    return f"{_of(broker, 'server')}, MQTT {_of(broker, 'protocol')}{reconnects}"


def _outbox(facts: Mapping[str, object]) -> str:
    outbox = _map(facts, "outbox")
    if not outbox:
        return "none"
    text = f"{_number(outbox, 'depth'):.0f} wait" + ("" if outbox.get("durable") else ", in this process's memory only")
    given_up = ", ".join(f"{_number(outbox, key):.0f} {key}" for key in ("dropped", "lost", "refused"))
    return f"{text}; {given_up}; {_number(outbox, 'flash_bytes') / 1e6:.1f} MB written to flash"


def _refused(facts: Mapping[str, object]) -> str:
    refused = _number(facts, "commands_refused")
    return f"; {refused:.0f} commands refused" if refused else ""


def _cameras(cameras: Mapping[str, object]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("camera", "state", "in/s", "out/s", "dropped", "detect", "threshold", "wanted", "reason")
    ]
    for name, camera in cameras.items():
        if not isinstance(camera, Mapping):
            continue
        wanted = _number(camera, "fps")
        rows.append(
            (
                printable(name),
                _of(camera, "state"),
                f"{_number(camera, 'fps_in'):.1f}",
                f"{_number(camera, 'fps_out'):.1f}",
                f"{_number(camera, 'dropped'):.0f}",
                "on" if camera.get("detect") else "off",
                f"{_number(camera, 'threshold'):g}",
                f"{wanted:g}" if wanted else "all",
                _of(camera, "reason"),
            )
        )
    return rows


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The numbers to the right, the words to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    is_number = (False, False, True, True, True, False, True, True, False)
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ).rstrip()
        for row in rows
    ]


def _alert(alert: Mapping[str, object]) -> str:
    try:
        at = datetime.fromtimestamp(_number(alert, "time")).strftime("%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # a year that no calendar has
        at = "?"
    word = "over" if alert.get("over") else _of(alert, "severity")
    return f"{at}  {word:<7}  {_of(alert, 'text')}"


def _duration(facts: Mapping[str, object]) -> str:
    seconds = int(_number(facts, "uptime_s"))
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds % 60} s" if minutes else f"{seconds} s"


def _counts(counts: Mapping[str, object]) -> str:
    return ", ".join(f"{printable(name)} {_number(counts, name):.0f}" for name in counts)


def _of(facts: Mapping[str, object], key: str) -> str:
    return _text(facts.get(key))


def _text(value: object) -> str:
    return "" if value is None else printable(str(value))


def _number(facts: Mapping[str, object], key: str) -> float:
    value = facts.get(key)
    is_number = isinstance(value, (int, float)) and -_MOST < value < _MOST  # not so for infinity, nor for no number
    return float(value) if is_number and isinstance(value, (int, float)) else 0.0


def _map(facts: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = facts.get(key)
    return value if isinstance(value, Mapping) else {}


def _list(facts: Mapping[str, object], key: str) -> Sequence[object]:
    value = facts.get(key)
    return value if isinstance(value, list) else ()
