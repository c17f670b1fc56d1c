"""A channel that gets no slot says once who holds them."""

from __future__ import annotations

import logging

import pytest

from tests.sim.parts import SimSource
from zhcedge.backends.cpu.arena import CpuArena, CpuBuffer
from zhcedge.core.ports import FrameSlot
from zhcedge.core.types import ImageFormat
from zhcedge.pipeline.channel import Channel
from zhcedge.pipeline.pools import SlotPool

SECOND_NS = 1_000_000_000


def make_channel() -> Channel[CpuBuffer]:
    arena, source = CpuArena(), SimSource()
    slots = [FrameSlot(index, 0, arena.surface(ImageFormat(4, 4), "t"), arena.results("t")) for index in range(3)]
    pool = SlotPool(slots)
    for holder in ("lane", "lane", "sink 0 mp4"):
        slot = pool.acquire("reader", 0.0)
        assert slot is not None
        slot.holder = holder
    return Channel(0, "door", "channel 0 door", source, source.open(), (), (), pool, ())


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_after_five_seconds_without_a_slot_its_holders_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    channel = make_channel()
    for tenths in range(49):
        channel.note_starved(SECOND_NS + tenths * SECOND_NS // 10)
    assert warnings(caplog) == []
    for tenths in range(50, 90):
        channel.note_starved(SECOND_NS + tenths * SECOND_NS // 10)
    assert warnings(caplog) == ["channel door: no free slot for 5 s; held by lane: 2, sink 0 mp4: 1"]


def test_a_slot_in_between_starts_the_time_again(caplog: pytest.LogCaptureFixture) -> None:
    channel = make_channel()
    channel.note_starved(SECOND_NS)
    channel.note_fed()
    channel.note_starved(7 * SECOND_NS)
    assert warnings(caplog) == []
    channel.note_starved(12 * SECOND_NS)
    assert len(warnings(caplog)) == 1
