"""How past events and totals are shown: as rows of a table for people, as objects for programs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zhcedge.app.moments import local_text
from zhcedge.core.printing import printable
from zhcedge.store.clips import Use
from zhcedge.store.history_batch import HOUR_NS, PastEvent, Place, Tally, TotalKey

EVENT_COLUMNS = ("start", "seconds", "camera", "label", "score", "zones", "lines", "end", "id")
TOTAL_COLUMNS = ("hour", "camera", "where", "label", "events", "seconds", "in", "out")

_UNSET = "?"  # behind a time of a clock that was not set


def event_facts(event: PastEvent) -> dict[str, object]:
    """An event as JSON: the keys of the MQTT message where they mean the same. Times are seconds since the epoch."""
    return {
        "id": event.id,
        "boot_id": event.boot_id,
        "camera": event.camera,
        "label": event.label,
        "top_score": event.top_score,
        "start_time": _seconds(event.start_ns),
        "end_time": _seconds(event.end_ns) if event.end_reason is not None else None,
        "presence_s": _seconds(event.presence_ns),
        "entered_zones": list(event.zones),
        "line_crossings": {line: way.value for line, way in event.lines},
        "end_reason": event.end_reason.value if event.end_reason is not None else None,
        "has_snapshot": event.has_snapshot,
        "has_clip": event.has_clip,
        "clock_synced": event.clock_synced,
    }


def clip_facts(uses: Sequence[Use]) -> list[dict[str, object]]:
    """The clip of an event as JSON: its files in order, and from which second to which each belongs to the event."""
    return [{"path": str(use.path), "from_s": round(use.from_s, 3), "to_s": round(use.to_s, 3)} for use in uses]


def event_row(event: PastEvent) -> tuple[str, ...]:
    """EVENT_COLUMNS of one event."""
    return (
        local_text(event.start_ns) + ("" if event.clock_synced else _UNSET),
        f"{event.presence_ns / 1e9:.1f}",
        event.camera,
        event.label,
        f"{event.top_score:.2f}",
        ",".join(event.zones) or "-",
        ",".join(f"{line}:{way.value}" for line, way in event.lines) or "-",
        event.end_reason.value if event.end_reason is not None else "open",
        event.id,
    )


def total_facts(key: TotalKey, tally: Tally) -> dict[str, object]:
    """A total as JSON. `hour` is the beginning of the hour in seconds since the epoch."""
    facts: dict[str, object] = {"hour": key.hour * 3600, "camera": key.camera}
    if key.place is not Place.CAMERA:
        facts[key.place.value] = key.name
    facts["label"] = key.label
    if key.place is Place.LINE:
        facts |= {"in": tally.went_in, "out": tally.went_out}
    else:
        facts |= {"events": tally.events, "presence_s": _seconds(tally.presence_ns)}
    return {**facts, "clock_synced": key.clock_synced}


def total_row(key: TotalKey, tally: Tally) -> tuple[str, ...]:
    """TOTAL_COLUMNS of one total."""
    is_line = key.place is Place.LINE
    return (
        local_text(key.hour * HOUR_NS)[:16] + ("" if key.clock_synced else _UNSET),
        key.camera,
        f"{key.place.value} {key.name}" if key.name else "-",
        key.label,
        "-" if is_line else str(tally.events),
        "-" if is_line else f"{tally.presence_ns / 1e9:.1f}",
        str(tally.went_in) if is_line else "-",
        str(tally.went_out) if is_line else "-",
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be; the last one is not filled up."""
    texts = [tuple(columns), *(tuple(printable(cell) for cell in row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in texts)


def summary(totals: Mapping[TotalKey, Tally]) -> list[str]:
    """Totals of a whole recording, the hours put together, one line for each place and label."""
    together: dict[tuple[Place, str, str], Tally] = {}
    for key, tally in totals.items():
        together.setdefault((key.place, key.name, key.label), Tally()).add(tally)
    lines = []
    for (place, name, label), tally in sorted(together.items()):
        where = f"{place.value} {name}" if name else "all"
        if place is Place.LINE:
            lines.append(f"{where}: {label} {tally.went_in} in, {tally.went_out} out")
        else:
            lines.append(f"{where}: {label} {tally.events}, {tally.presence_ns / 1e9:.1f} s together")
    return lines


def _seconds(time_ns: int) -> float:
    return round(time_ns / 1e9, 6)
