"""The packet ring stays within its bytes, can always be decoded from its start, and cuts windows at key frames."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.media.packets import EncodedPacket, PacketRing


def packet(index: int, size: int = 10, is_keyframe: bool = False) -> EncodedPacket:
    return EncodedPacket(memoryview(bytes(size)), index, index, 1, Fraction(1, 10), is_keyframe, index / 10)


def indices(packets: tuple[EncodedPacket, ...]) -> list[int]:
    return [kept.pts for kept in packets if kept.pts is not None]


@given(st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=80), st.integers(0, 150))
def test_it_holds_the_newest_whole_groups_that_fit(stream: list[tuple[int, bool]], limit: int) -> None:
    ring = PacketRing(limit)
    for index, (size, is_keyframe) in enumerate(stream):
        ring.append(packet(index, size, is_keyframe))
        held = ring.window(0.0, float("inf"))
        assert ring.total_bytes == sum(kept.payload.nbytes for kept in held) <= limit
        assert not held or held[0].is_keyframe
        # Without a gap up to the newest packet, unless that one's own group had to be given up.
        assert not held or indices(held) == list(range(indices(held)[0], index + 1))


def test_a_group_that_fits_is_never_given_up() -> None:
    ring = PacketRing(100)
    for index in range(30):
        ring.append(packet(index, 10, index % 5 == 0))
    assert indices(ring.window(0.0, 100.0)) == list(range(20, 30))


def test_packets_before_the_first_key_frame_are_not_kept() -> None:
    ring = PacketRing(100)
    ring.append(packet(0))
    assert ring.total_bytes == 0


@pytest.mark.parametrize(
    ("start_s", "end_s", "expected"),
    [
        (0.0, 0.2, [0, 1, 2]),
        (0.7, 0.8, [5, 6, 7, 8]),
        (0.5, 0.5, [5]),
        (-5.0, 0.1, [0, 1]),
        (1.3, 99.0, [10, 11, 12, 13, 14]),
        (1.5, 99.0, []),
        (-2.0, -1.0, []),
    ],
)
def test_a_window_begins_at_the_key_frame_before_it(start_s: float, end_s: float, expected: list[int]) -> None:
    ring = PacketRing()
    for index in range(15):
        ring.append(packet(index, is_keyframe=index % 5 == 0))
    assert indices(ring.window(start_s, end_s)) == expected


def test_a_cleared_ring_starts_afresh() -> None:
    ring = PacketRing()
    ring.append(packet(0, is_keyframe=True))
    ring.clear()
    ring.append(packet(1))
    assert (ring.total_bytes, ring.window(0.0, 9.0)) == (0, ())


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        PacketRing(-1)
