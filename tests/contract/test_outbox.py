"""What every outbox does, and how the courier empties one. A new implementation joins OUTBOXES."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.core.ports import Message, Outbox
from zhcedge.publish.courier import Courier
from zhcedge.store.memory import MemoryOutbox

OutboxMaker = Callable[[int], Outbox]

OUTBOXES: dict[str, OutboxMaker] = {"memory": MemoryOutbox}

each_outbox = pytest.mark.parametrize("make", OUTBOXES.values(), ids=OUTBOXES.keys())


def message(number: int) -> Message:
    return Message("events", b"%d" % number)


def held(outbox: Outbox) -> list[int]:
    return [int(row.payload) for _, row in outbox.pending(0, 10_000)]


@each_outbox
def test_rows_come_in_order_with_growing_ids(make: OutboxMaker) -> None:
    outbox = make(10)
    ids = [outbox.append(message(number)) for number in range(5)]
    assert ids[0] > 0
    assert ids == sorted(set(ids))
    assert outbox.pending(0, 10) == list(zip(ids, map(message, range(5)), strict=True))
    assert [row_id for row_id, _ in outbox.pending(ids[1], 2)] == ids[2:4]


@each_outbox
def test_a_row_stays_until_it_is_acknowledged(make: OutboxMaker) -> None:
    outbox = make(10)
    ids = [outbox.append(message(number)) for number in range(3)]
    outbox.ack(ids[1])
    assert held(outbox) == [0, 2]
    assert (outbox.depth, outbox.dropped) == (2, 0)


@each_outbox
def test_acknowledging_what_is_gone_does_nothing(make: OutboxMaker) -> None:
    outbox = make(10)
    row_id = outbox.append(message(0))
    for _ in range(2):
        outbox.ack(row_id)
    outbox.ack(999)
    assert (outbox.depth, outbox.dropped) == (0, 0)
    assert outbox.append(message(1)) > row_id


@each_outbox
def test_a_full_outbox_gives_up_the_oldest_expendable_rows_first(make: OutboxMaker) -> None:
    outbox = make(4)
    for number, is_expendable in enumerate([False, True, True, False]):
        outbox.append(message(number), is_expendable)
    for number, left in [(4, [0, 2, 3, 4]), (5, [0, 3, 4, 5]), (6, [3, 4, 5, 6])]:
        outbox.append(message(number))
        assert held(outbox) == left
    assert outbox.dropped == 3


@each_outbox
def test_every_outbox_has_a_name_of_its_own(make: OutboxMaker) -> None:
    first, second = make(1), make(1)
    assert first.outbox_id == first.outbox_id
    assert first.outbox_id != second.outbox_id


@each_outbox
@given(limit=st.integers(1, 6), steps=st.lists(st.one_of(st.booleans(), st.integers(0, 40)), max_size=60))
def test_nothing_is_lost_but_what_is_counted(make: OutboxMaker, limit: int, steps: Sequence[bool | int]) -> None:
    outbox = make(limit)
    ids: list[int] = []
    acked = 0
    for step in steps:
        if isinstance(step, bool):
            ids.append(outbox.append(message(len(ids)), is_expendable=step))
        elif step < len(ids):
            before = outbox.depth
            outbox.ack(ids[step])
            acked += before - outbox.depth
    assert outbox.depth <= limit
    assert outbox.depth + outbox.dropped + acked == len(ids)
    assert held(outbox) == sorted(held(outbox))


def test_an_outbox_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        MemoryOutbox(0)


class LoopbackBroker:
    """A broker whose connections begin, end and acknowledge when the test says so."""

    def __init__(self, courier: Courier) -> None:
        self._courier = courier
        self.session = 0
        self._sessions = 0
        self.arrived: list[int] = []
        self.unacknowledged: deque[int] = deque()

    @property
    def is_connected(self) -> bool:
        return self.session > 0

    def start(self) -> None:
        self._sessions += 1
        self.session = self._sessions

    def publish(self, message: Message, token: int = 0, session: int = 0) -> bool:
        if session not in (0, self.session) or not self.session:
            return False
        self.arrived.append(int(message.payload))
        self.unacknowledged.append(token)
        return True

    def acknowledge(self, count: int) -> None:
        for _ in range(min(count, len(self.unacknowledged))):
            self._courier.on_ack(self.unacknowledged.popleft())

    def stop(self, last: Sequence[Message], timeout_s: float) -> None:
        self.session = 0
        self.unacknowledged.clear()


def test_only_a_window_of_messages_is_in_flight() -> None:
    outbox = MemoryOutbox(100)
    courier = Courier(outbox, window=5)
    broker = LoopbackBroker(courier)
    broker.start()
    for number in range(30):
        outbox.append(message(number))
    for _ in range(3):
        courier.pump(broker)
    assert broker.arrived == list(range(5))
    broker.acknowledge(2)
    courier.pump(broker)
    assert broker.arrived == list(range(7))
    assert outbox.depth == 28


def test_without_a_session_everything_waits() -> None:
    outbox = MemoryOutbox(100)
    courier = Courier(outbox)
    broker = LoopbackBroker(courier)
    outbox.append(message(0))
    courier.pump(broker)
    assert (outbox.depth, broker.arrived) == (1, [])
    assert not courier.drain(broker, 0.0)


actions = st.lists(st.sampled_from(["append", "pump", "ack", "cut", "connect"]), max_size=80)


@given(actions, st.integers(1, 4))
def test_any_cuts_lose_nothing_and_repeat_only_what_was_not_acknowledged(steps: list[str], window: int) -> None:
    outbox = MemoryOutbox(1000)
    courier = Courier(outbox, window)
    broker = LoopbackBroker(courier)
    count = 0
    for step in steps:
        if step == "append":
            outbox.append(message(count))
            count += 1
        elif step == "pump":
            courier.pump(broker)
        elif step == "ack":
            broker.acknowledge(1)
        elif step == "cut":
            broker.stop((), 0)
        else:
            broker.start()
    broker.start()
    while outbox.depth:
        courier.pump(broker)
        broker.acknowledge(window)
    first_seen = list(dict.fromkeys(broker.arrived))
    assert first_seen == list(range(count))
    # Within the repeats of one session order holds too: a number is followed by a smaller one only after a cut.
    falls = sum(b <= a for a, b in zip(broker.arrived, broker.arrived[1:], strict=False))
    assert falls <= steps.count("cut") + steps.count("connect") + 1
