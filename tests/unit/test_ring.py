"""The detection ring: what goes in comes out, the oldest are dropped and counted, torn records are recognised."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.core.types import DETECTION_DTYPE, MAX_DETECTIONS, FrameInfo
from zhcedge.pipeline.ring import _HEADER_BYTES, _PREFIX, DetectionRing, RingRecord

CAPACITY = 8


def make_ring() -> tuple[bytearray, DetectionRing, DetectionRing]:
    memory = bytearray(DetectionRing.size(CAPACITY))
    return memory, DetectionRing(memoryview(memory), CAPACITY), DetectionRing(memoryview(memory), CAPACITY)


def make_record(sequence: int, count: int = 3, is_end: bool = False) -> RingRecord:
    random = np.random.default_rng(sequence)
    detections = np.zeros(count, DETECTION_DTYPE)
    detections["box"] = random.random((count, 4), np.float32) * 1000
    detections["score"] = random.random(count, np.float32)
    detections["label"] = random.integers(0, 80, count)
    info = FrameInfo(2, sequence, 1_700_000_000_000_000_000 + sequence, 55 + sequence, sequence / 10, sequence % 2 == 0)
    return RingRecord(info, 768, 576, 77, detections, is_end)


@given(st.lists(st.integers(0, MAX_DETECTIONS), max_size=CAPACITY))
def test_records_come_out_as_they_went_in_bit_for_bit(counts: list[int]) -> None:
    _, writer, reader = make_ring()
    records = [make_record(number, count, is_end=count == 0) for number, count in enumerate(counts)]
    for record in records:
        writer.publish(record)
    found = list(reader.drain())
    assert [record.info for record in found] == [record.info for record in records]
    assert [record.is_end for record in found] == [record.is_end for record in records]
    assert [record.detections.tobytes() for record in found] == [record.detections.tobytes() for record in records]
    assert reader.dropped == 0


@given(st.booleans(), st.booleans(), st.booleans())
def test_what_kind_of_record_it_is_comes_through(is_end: bool, is_still: bool, is_unseen: bool) -> None:
    _, writer, reader = make_ring()
    writer.publish(replace(make_record(1), is_end=is_end, is_still=is_still, is_unseen=is_unseen))
    (found,) = reader.drain()
    assert (found.is_end, found.is_still, found.is_unseen) == (is_end, is_still, is_unseen)


@given(st.lists(st.integers(0, 3 * CAPACITY), min_size=1, max_size=12))
def test_a_slow_reader_loses_the_oldest_and_counts_every_one(bursts: list[int]) -> None:
    _, writer, reader = make_ring()
    seen: list[int] = []
    number = 0
    for burst in bursts:
        for _ in range(burst):
            writer.publish(make_record(number))
            number += 1
        seen += [record.info.sequence for record in reader.drain()]
    assert seen == sorted(set(seen))
    assert len(seen) + reader.dropped == number
    assert not number or seen[-1] == number - 1


def flip_a_bit_of_the_first_record(memory: bytearray) -> None:
    memory[_HEADER_BYTES + _PREFIX.size + 20] ^= 1


def test_a_record_that_is_not_visible_yet_is_read_later() -> None:
    memory, writer, reader = make_ring()
    for number in range(3):
        writer.publish(make_record(number))
    flip_a_bit_of_the_first_record(memory)  # as another processor may see it: the count first, the body later
    assert list(reader.drain()) == []
    flip_a_bit_of_the_first_record(memory)
    assert [record.info.sequence for record in reader.drain()] == [0, 1, 2]
    assert reader.dropped == 0


def test_a_record_that_stays_torn_is_skipped_once_the_writer_is_a_lap_ahead() -> None:
    memory, writer, reader = make_ring()
    for number in range(CAPACITY):
        writer.publish(make_record(number))
    flip_a_bit_of_the_first_record(memory)
    assert [record.info.sequence for record in reader.drain()] == list(range(1, CAPACITY))
    assert reader.dropped == 1


def test_a_reader_that_comes_late_starts_with_what_is_new() -> None:
    memory, writer, _ = make_ring()
    writer.publish(make_record(0))
    late = DetectionRing(memoryview(memory), CAPACITY)
    writer.publish(make_record(1))
    assert [record.info.sequence for record in late.drain()] == [1]


def test_waking_makes_the_descriptor_readable() -> None:
    descriptor = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        ring = DetectionRing(memoryview(bytearray(DetectionRing.size(CAPACITY))), CAPACITY, descriptor)
        with pytest.raises(BlockingIOError):
            os.eventfd_read(descriptor)
        ring.wake()
        assert os.eventfd_read(descriptor) == 1
    finally:
        os.close(descriptor)
