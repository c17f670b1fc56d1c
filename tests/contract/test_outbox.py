"""What every outbox does, and how the courier empties one. A new implementation joins outboxes.KINDS."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.outboxes import KINDS, HandClock, OutboxMaker, held, maker, message, rows
from zhcedge.core.delivery import Alert, Message, OpenEvent
from zhcedge.publish.courier import Courier
from zhcedge.store.memory import MemoryOutbox
from zhcedge.store.outbox import open_outbox
from zhcedge.store.settings import OutboxLimits, OutboxSettings


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Iterator[OutboxMaker]:
    with maker(request.param) as one:
        yield one


each_kind = pytest.mark.parametrize("kind", KINDS)


def test_rows_come_in_order_with_growing_ids(make: OutboxMaker) -> None:
    outbox = make(10)
    ids = []
    for number in range(5):
        expected = outbox.next_id
        ids.append(outbox.append(message(number)))
        assert ids[-1] == expected
    assert ids[0] > 0
    assert ids == sorted(set(ids))
    assert [(row.id, row.message) for row in outbox.pending(0, 10)] == list(
        zip(ids, map(message, range(5)), strict=True)
    )
    assert [row.id for row in outbox.pending(ids[1], 2)] == ids[2:4]
    assert [row.created_ns for row in outbox.pending(0, 10)] == [HandClock().wall_ns()] * 5


def test_a_row_stays_until_it_is_acknowledged(make: OutboxMaker) -> None:
    outbox = make(10)
    ids = [outbox.append(message(number)) for number in range(3)]
    outbox.ack(ids[1])
    assert held(outbox) == [0, 2]
    assert (outbox.depth, outbox.dropped) == (2, 0)


def test_acknowledging_what_is_gone_does_nothing(make: OutboxMaker) -> None:
    outbox = make(10)
    row_id = outbox.append(message(0))
    for _ in range(2):
        outbox.ack(row_id)
    outbox.ack(999)
    assert (outbox.depth, outbox.dropped) == (0, 0)
    assert outbox.append(message(1)) > row_id


def test_everything_of_a_message_is_kept(make: OutboxMaker) -> None:
    outbox = make(10)
    messages = [
        Message("a/b", b"\x00\xff", qos=2, retain=True, expiry_s=60, correlation=b"\x01"),
        Message("tür", b"", qos=0),
    ]
    for one in messages:
        outbox.append(one)
    assert [row.message for row in rows(outbox)] == messages


def test_a_batch_is_kept_as_a_whole_or_not_at_all(make: OutboxMaker) -> None:
    outbox = make(10)
    with outbox.batch():
        for number in range(3):
            outbox.append(message(number), opens=OpenEvent(str(number), b"open"))
        assert outbox.depth == 0
    with suppress(ZeroDivisionError), outbox.batch():
        last = outbox.append(message(3), closes="1")
        _ = 1 // 0
    assert held(outbox) == [0, 1, 2]
    assert [event.id for event in outbox.open_events()] == ["0", "1", "2"]
    assert outbox.append(message(4)) > last


def test_an_event_is_open_until_a_message_closes_it(make: OutboxMaker) -> None:
    outbox = make(10)
    outbox.append(message(0), opens=OpenEvent("a", b"new"))
    outbox.append(message(1), opens=OpenEvent("b", b"new"))
    outbox.append(message(2), True, opens=OpenEvent("a", b"update"))
    assert outbox.open_events() == [OpenEvent("a", b"update"), OpenEvent("b", b"new")]
    outbox.append(message(3), closes="a")
    outbox.append(message(4), closes="never seen")
    assert outbox.open_events() == [OpenEvent("b", b"new")]


def test_a_refused_row_is_gone_and_counted(make: OutboxMaker) -> None:
    outbox = make(10)
    ids = [outbox.append(message(number)) for number in range(2)]
    for _ in range(2):
        outbox.refuse(ids[0], "not authorized")
    assert held(outbox) == [1]
    assert (outbox.refused, outbox.dropped) == (1, 0)


def test_a_full_outbox_gives_up_the_oldest_expendable_rows_first(make: OutboxMaker) -> None:
    outbox = make(4)
    for number, is_expendable in enumerate([False, True, True, False]):
        outbox.append(message(number), is_expendable)
    for number, left in [(4, [0, 2, 3, 4]), (5, [0, 3, 4, 5]), (6, [3, 4, 5, 6])]:
        outbox.append(message(number))
        assert held(outbox) == left
    assert (outbox.dropped, outbox.lost) == (3, 1)
    outbox.append(message(7), is_expendable=True)
    assert held(outbox) == [3, 4, 5, 6]


def test_every_outbox_has_a_name_of_its_own(make: OutboxMaker) -> None:
    first, second = make(1), make(1)
    assert first.outbox_id == first.outbox_id
    assert first.outbox_id != second.outbox_id


def test_closing_twice_does_nothing(make: OutboxMaker) -> None:
    outbox = make(1)
    outbox.close()
    outbox.close()


@each_kind
@given(limit=st.integers(1, 6), steps=st.lists(st.one_of(st.booleans(), st.integers(0, 40)), max_size=60))
def test_nothing_is_lost_but_what_is_counted(kind: str, limit: int, steps: Sequence[bool | int]) -> None:
    with maker(kind) as make:
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


def test_dropped_messages_are_told_of_at_most_once_a_minute() -> None:
    clock, alerts = HandClock(), list[Alert]()
    outbox = MemoryOutbox(1, clock, alerts.append)
    for number in range(4):
        outbox.append(message(number), is_expendable=number % 2 == 1)
        outbox.tick()
        clock.move(1)
    assert [alert.code for alert in alerts] == ["messages-dropped"]
    assert alerts[0].text.startswith("1 messages were given up, 0 of them")
    clock.move(60)
    outbox.tick()
    assert alerts[1].text.startswith("2 messages were given up, 1 of them")


def test_the_size_of_all_messages_is_limited() -> None:
    outbox = MemoryOutbox(OutboxLimits(max_bytes=10_000))
    for number in range(20):
        outbox.append(message(number, 2_000))
    assert (outbox.depth, outbox.dropped) == (4, 16)


@pytest.mark.parametrize("is_set", [True, False])
def test_a_message_is_given_up_when_it_is_too_old(is_set: bool) -> None:
    clock = HandClock(is_set)
    outbox = MemoryOutbox(OutboxLimits(max_age_s=100), clock)
    outbox.append(message(0))
    clock.move(60)
    outbox.append(message(1))
    clock.move(60)
    outbox.tick()
    assert held(outbox) == [1]
    assert (outbox.dropped, outbox.lost) == (1, 1)


def test_without_a_folder_messages_wait_in_memory() -> None:
    outbox = open_outbox(OutboxSettings(), HandClock(), [].append)
    assert isinstance(outbox, MemoryOutbox)
    assert not outbox.is_durable


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
    courier = Courier(outbox, window=window)
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
