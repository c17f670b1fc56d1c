"""How the demo says things: pure functions from what MQTT and the summary file brought to lines of text."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HEADING = f"{'time':12}  {'camera':10}  {'event':6}  {'label':12}  score  where"

_ROWS = ("upper", "middle", "lower")
_COLUMNS = ("left", "centre", "right")
_COLOURS = {"new": "32", "end": "31", "update": "2", "pass": "32", "fail": "31", "unproved": "33", "bold": "1"}


@dataclass(frozen=True)
class Paint:
    """Wraps text into ANSI colours, or leaves it as it is."""

    is_on: bool

    def __call__(self, style: str, text: str) -> str:
        code = _COLOURS.get(style)
        return f"\x1b[{code}m{text}\x1b[0m" if self.is_on and code else text


def place(box: Sequence[float], width_px: float, height_px: float) -> str:
    """Where the middle of a box (x1, y1, x2, y2 in pixels) lies in the picture: "upper left" ... "lower right".

    The picture is cut into three by three; its middle is "centre".
    """
    column = _COLUMNS[_third((box[0] + box[2]) / 2, width_px)]
    row = _ROWS[_third((box[1] + box[3]) / 2, height_px)]
    return "centre" if (row, column) == ("middle", "centre") else f"{row} {column}"


def event_line(event: Mapping[str, object], size_px: tuple[float, float], paint: Paint) -> str:
    """One event as one line. `event` is the payload of the events topic; `size_px` is the picture's width, height.

    Raises KeyError, TypeError or ValueError when the payload is not an event.
    """
    after = event["after"]
    if not isinstance(after, Mapping):
        raise TypeError("an event has an object called 'after'")
    kind = str(event["type"])
    box = [float(value) for value in after["box"]]
    x1, y1, x2, y2 = box
    where = f"{place(box, *size_px):13} {x1:.0f},{y1:.0f} to {x2:.0f},{y2:.0f}"
    return (
        f"{_clock_time(float(after['frame_time'])):12}  {after['camera']!s:10}  {paint(kind, f'{kind:6}')}  "
        f"{after['label']!s:12}  {float(after['score']):.2f}   {where}"
    )


def summary_lines(summary: Mapping[str, object], received: Mapping[str, int], paint: Paint) -> list[str]:
    """The end of the demo: one "name  value" line for each thing that was measured.

    Args:
        summary: content of the daemon's --summary file.
        received: events that arrived over MQTT, by type.
    """
    latency, events, ledger = _part(summary, "latency_ms"), _part(summary, "events"), _part(summary, "ledger")
    dropped = _part(summary, "dropped")
    verdict = str(ledger.get("verdict", "unproved"))
    account = str(ledger.get("text", "no account")).removesuffix(verdict).rstrip(" :,")
    counts = ", ".join(f"{received.get(kind, 0)} {kind}" for kind in ("new", "update", "end"))
    sent, got = sum(_whole(value) for value in events.values()), sum(received.values())
    delivery = "all received over MQTT" if sent == got else f"{sent} made, {got} received over MQTT"
    written = summary.get("written")
    return [
        f"frames   {summary.get('frames', 0)} in {_number(summary.get('seconds')):.1f} s, "
        f"{_number(summary.get('fps')):.1f} fps, dropped {_whole(dropped.get('frames'))}",
        f"latency  p50 {_number(latency.get('p50')):.0f} ms, p99 {_number(latency.get('p99')):.0f} ms",
        f"events   {counts}; {delivery}",
        f"ledger   {account}: {paint(verdict, verdict)}",
        *(f"wrote    {path}" for path in (written if isinstance(written, list) else [])),
    ]


def _third(position: float, extent: float) -> int:
    return min(max(int(3 * position / extent), 0), 2)


def _clock_time(epoch_s: float) -> str:
    """Local time with milliseconds."""
    return f"{time.strftime('%H:%M:%S', time.localtime(epoch_s))}.{int(epoch_s % 1 * 1000):03d}"


def _part(summary: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = summary.get(key)
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _whole(value: object) -> int:
    return int(_number(value))
