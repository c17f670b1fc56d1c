"""A camera that loses frames says so: not at once, not often, with counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from zhcedge.pipeline.dropping import FIRST_NS, INTERVAL_NS, DropWatch

SECOND_NS = 1_000_000_000


@dataclass
class Counts:
    """What the watch looks at of a channel."""

    name: str = "gate"
    frames: int = 0
    dropped: int = 0
    sink_dropped: int = 0
    facts: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(is_live=True))
    source: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(warnings=()))


def watched(
    channel: Counts, until_s: int, caplog: pytest.LogCaptureFixture, each: Any = lambda second: None
) -> list[str]:
    watch: DropWatch[object] = DropWatch(cast("Any", channel))
    for second in range(1, until_s):
        channel.frames += 25
        each(second)
        watch.look(second * SECOND_NS)
    return caplog.messages


def test_losses_of_a_moment_are_one_line_with_counts(caplog: pytest.LogCaptureFixture) -> None:
    channel = Counts()

    def each(second: int) -> None:
        channel.dropped += 2 if 5 <= second < 10 else 0
        channel.sink_dropped += second == 7

    (line,) = watched(channel, 1000, caplog, each)
    assert line.startswith(
        "channel gate: 10 frames were dropped, because the detector was busy; 1 frames did not reach"
    )


def test_lasting_losses_are_a_line_every_five_minutes_and_add_up(caplog: pytest.LogCaptureFixture) -> None:
    channel = Counts()

    def each(second: int) -> None:
        channel.dropped += 1

    lines = watched(channel, 1000, caplog, each)
    assert len(lines) == 1 + (1000 - FIRST_NS // SECOND_NS) // (INTERVAL_NS // SECOND_NS)
    told = [int(line.split()[2]) for line in lines]
    assert told[1:] == [INTERVAL_NS // SECOND_NS] * (len(lines) - 1)


def test_what_a_source_drops_itself_is_said_too_and_a_file_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    channel = Counts()
    channel.source.warnings = ("decoding was too slow: 9 packets dropped",)
    assert "9 packets dropped" in watched(channel, 60, caplog)[0]
    caplog.clear()
    file = Counts(dropped=5)
    file.facts.is_live = False
    assert watched(file, 600, caplog) == []
