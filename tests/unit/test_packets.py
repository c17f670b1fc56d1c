"""The packet ring: bounded, one copy, its own clock, and a beginning that can be decoded."""

from __future__ import annotations

import itertools
import threading
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.clips import held_packets
from zhcedge.core.packets import EncodedPacket
from zhcedge.media.packets import MAX_PACKETS, PacketRing

S = 1_000_000_000
TENTH = Fraction(1, 10)


def packet(
    index: int, size: int = 10, is_keyframe: bool = False, *, pts: int | None = None, dts: int | None = None
) -> EncodedPacket:
    """Number `index` of a stream with ten pictures a second."""
    payload = memoryview(bytes([index % 256]) * size)
    pts, dts = index if pts is None else pts, index if dts is None else dts
    return EncodedPacket(payload, pts, dts, 1, TENTH, is_keyframe, index / 10)


def filled(count: int, group: int = 5, size: int = 10, max_bytes: int = 10_000, max_s: float = 1000.0) -> PacketRing:
    ring = PacketRing(max_bytes, max_s)
    ring.begin("form")
    for index in range(count):
        ring.append(packet(index, size, index % group == 0))
        ring.shown(index, (100 + index) * S)
    return ring


@given(st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=80), st.integers(1, 150))
def test_what_it_holds_is_the_newest_in_one_piece_as_it_went_in(stream: list[tuple[int, bool]], limit: int) -> None:
    ring = PacketRing(limit)
    ring.begin("form")
    came: list[tuple[int, int]] = []
    for index, (size, is_keyframe) in enumerate(stream):
        ring.append(packet(index, size, is_keyframe))
        came.append((index, size))
        kept = held_packets(ring)
        assert sum(len(data) for _, data in kept) == ring.total_bytes <= limit
        for one, data in kept:
            assert one.pts is not None
            assert data == bytes([one.pts % 256]) * came[one.pts][1]
        # Without a hole up to the newest one, but for one that is larger than the ring or empty.
        expected = [number for number, size in came if 0 < size <= limit][-len(kept) :] if kept else []
        assert [one.pts for one, _ in kept] == expected
        start = ring.start_at(0)
        assert start is None or start.is_keyframe


def test_packets_that_are_older_than_its_time_go_but_not_what_the_rest_needs() -> None:
    ring = filled(100, group=8, max_s=2.0)
    # The newest is at 9.9 s; 7.9 s is shown by the group that begins at 7.2 s.
    assert [kept.pts for kept, _ in held_packets(ring)] == list(range(72, 100))


def test_a_group_longer_than_the_time_stays_whole() -> None:
    ring = filled(100, group=1000, max_s=2.0)
    assert len(held_packets(ring)) == 100


def test_a_group_longer_than_the_bytes_loses_its_beginning_and_nothing_begins_there() -> None:
    ring = filled(30, group=1000, max_bytes=100)
    assert [kept.pts for kept, _ in held_packets(ring)] == list(range(20, 30))
    assert ring.start_at(0) is None
    ring.append(packet(30, is_keyframe=True))
    start = ring.start_at(0)
    assert start is not None
    assert start.pts == 30


def test_the_index_is_bounded_too() -> None:
    ring = filled(MAX_PACKETS + 10, group=10**9, size=1, max_bytes=10**6, max_s=10**6)
    assert ring.total_bytes == MAX_PACKETS


@pytest.mark.parametrize(("place_s", "expected"), [(1.2, 10), (0.99, 5), (-3.0, 0), (99.0, 10)])
def test_a_beginning_is_the_key_frame_before_or_the_first_one_held_packets(place_s: float, expected: int) -> None:
    ring = filled(15)
    origin = held_packets(ring)[0][0].show_ns
    start = ring.start_at(origin + round(place_s * S))
    assert start is not None
    assert start.pts == expected


def test_a_reader_that_is_overtaken_is_told() -> None:
    ring = filled(30, max_bytes=100)
    with pytest.raises(LookupError):
        ring.read(0, bytes)
    assert ring.read(30, bytes) is None
    ring.clear()
    with pytest.raises(LookupError):  # what comes next does not continue it
        ring.read(30, bytes)


def test_its_clock_goes_on_through_jumps_of_the_timestamps() -> None:
    ring = PacketRing(1000)
    ring.begin("form")
    for index, ticks in enumerate([0, 1, 2, 900_000, 900_001, 5, 6, 6, 8]):
        ring.append(packet(index, pts=ticks, dts=ticks))
    places = [kept.place_ns for kept, _ in held_packets(ring)]
    steps = [later - earlier for earlier, later in itertools.pairwise(places)]
    assert steps == [S // 10] * 7 + [S // 5]


def test_its_clock_knows_the_gap_between_two_connections() -> None:
    ring = PacketRing(1000)
    ring.begin("first")
    ring.append(packet(0, is_keyframe=True))
    ring.begin("second")
    ring.append(EncodedPacket(memoryview(b"x"), 77, 77, 1, TENTH, True, 30.0))
    (one, _), (other, _) = held_packets(ring)
    assert (one.form, other.form) == ("first", "second")
    assert other.place_ns - one.place_ns == 30 * S


def test_reordered_pictures_are_shown_at_their_own_times() -> None:
    ring = PacketRing(1000)
    ring.begin("form")
    for dts, pts in enumerate([2, 5, 3, 4]):
        ring.append(packet(dts, pts=pts, dts=dts))
    origin = held_packets(ring)[0][0].place_ns
    assert [round((kept.show_ns - origin) / S, 6) for kept, _ in held_packets(ring)] == [0.2, 0.5, 0.3, 0.4]


def test_wall_clock_and_place_are_found_from_each_other() -> None:
    ring = filled(10)
    origin = held_packets(ring)[0][0].show_ns
    assert ring.place_of(104 * S) == origin + 4 * S // 10
    assert ring.place_of(104 * S + S // 3) == origin + 4 * S // 10  # the nearest picture
    assert ring.place_of(109 * S + 7) == origin + 9 * S // 10 + 7
    assert ring.place_of(100 * S - 7) == origin - 7
    assert ring.wall_of(origin - 7) == 100 * S - 7
    assert PacketRing(10).place_of(5) is None


def test_a_step_of_the_wall_clock_spoils_nothing_while_the_picture_is_held_packets() -> None:
    ring = PacketRing(1000)
    ring.begin("form")
    for index in range(10):
        ring.append(packet(index))
        ring.shown(index, (index + 100 + (3600 if index < 5 else 0)) * S)
    origin = held_packets(ring)[0][0].show_ns
    assert ring.place_of((3600 + 103) * S) == origin + 3 * S // 10
    assert ring.place_of(108 * S) == origin + 8 * S // 10


def test_readers_see_whole_packets_while_the_writer_overtakes_them() -> None:
    ring = PacketRing(5_000)
    ring.begin("form")
    is_over = threading.Event()

    def write() -> None:
        for index in range(20_000):
            ring.append(packet(index, 100 + index % 700, index % 7 == 0))
        is_over.set()

    writer = threading.Thread(target=write)
    writer.start()
    number, seen = 0, 0
    while not is_over.is_set() or number < ring.next_number:
        try:
            read = ring.read(number, bytes)
        except LookupError:
            number = max(number + 1, ring.next_number - 3)
            continue
        if read is not None:
            kept, data = read
            assert kept.pts is not None
            assert data == bytes([kept.pts % 256]) * (100 + kept.pts % 700)
            seen, number = seen + 1, number + 1
    writer.join()
    assert seen


def test_limits_without_sense_are_refused() -> None:
    for max_bytes, max_s in ((0, 1.0), (1, -1.0)):
        with pytest.raises(ValueError, match="must"):
            PacketRing(max_bytes, max_s)
