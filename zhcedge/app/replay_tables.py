"""The table of a replay's events: CSV or JSON Lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from zhcedge.app.history_view import event_facts, event_row
from zhcedge.app.moments import iso_text
from zhcedge.media.line_file import LineFile
from zhcedge.store.history_batch import PastEvent

COLUMNS = ("from", "to", "label", "score", "zones", "loitered", "lines", "end", "id")
"""Of what people see: `from` and `to` are seconds of the recording."""

_CSV = (
    "id",
    "camera",
    "label",
    "start",
    "end",
    "from_s",
    "to_s",
    "top_score",
    "entered_zones",
    "loitered_zones",
    "line_crossings",
    "end_reason",
)


@dataclass(frozen=True)
class ReplayedEvent:
    """An event that has ended.

    Attributes:
        event: with times of the recording's clock.
        loitered: zones in which it stayed for longer than it should.
        start_ns: wall clock of the recording's first picture.
    """

    event: PastEvent
    loitered: tuple[str, ...]
    start_ns: int

    @property
    def from_s(self) -> float:
        """Where in the recording its object was first seen."""
        return round((self.event.start_ns - self.start_ns) / 1e9, 3)

    @property
    def to_s(self) -> float:
        """Where it was seen last."""
        return round((self.event.end_ns - self.start_ns) / 1e9, 3)

    def facts(self) -> dict[str, object]:
        """As JSON; keys as in `zhc-edge events --json`, where they mean the same."""
        facts = event_facts(self.event)
        for key in ("boot_id", "has_snapshot", "has_clip", "clock_synced"):  # of a daemon only
            del facts[key]
        return {**facts, "loitered_zones": list(self.loitered), "from_s": self.from_s, "to_s": self.to_s}

    def row(self) -> tuple[str, ...]:
        """COLUMNS."""
        _, _, _, label, score, zones, lines, end, event_id = event_row(self.event)
        loitered = ",".join(self.loitered) or "-"
        return (f"{self.from_s:.2f}", f"{self.to_s:.2f}", label, score, zones, loitered, lines, end, event_id)


class EventTable:
    """Writes a table, CSV where its name ends so, else JSON Lines. Use as a context manager: without `finish` nothing
    is there. Owned by one thread.

    The constructor raises OutputError and then leaves nothing behind; so does `write`.
    """

    def __init__(self, path: Path) -> None:
        self._is_csv = path.suffix.lower() == ".csv"
        self._is_finished = False
        self._lines = LineFile(path)

    def __enter__(self) -> EventTable:
        if self._is_csv:
            self._lines.write(_csv_line(_CSV))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_finished:
            self._lines.abandon()

    def write(self, replayed: ReplayedEvent) -> None:
        if not self._is_csv:
            self._lines.write(json.dumps(replayed.facts(), ensure_ascii=False))
            return
        event = replayed.event
        cells = (
            event.id,
            event.camera,
            event.label,
            iso_text(event.start_ns),
            iso_text(event.end_ns),
            f"{replayed.from_s:.3f}",
            f"{replayed.to_s:.3f}",
            f"{event.top_score:.4f}",
            " ".join(event.zones),
            " ".join(replayed.loitered),
            " ".join(f"{line}:{way.value}" for line, way in event.lines),
            event.end_reason.value if event.end_reason is not None else "",
        )
        self._lines.write(_csv_line(cells))

    def finish(self) -> None:
        """Give the file its name. Raises OutputError, with nothing left behind."""
        self._is_finished = True
        self._lines.finish()


def _csv_line(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()
