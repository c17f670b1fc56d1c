"""A durable outbox against a model of it: any calls, ends and kills in any order."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.contract.outboxes import Place, message, pass_time, rest, rows, settle
from zhcedge.core.delivery import OpenEvent
from zhcedge.store.settings import OutboxLimits

pytestmark = [pytest.mark.slow, pytest.mark.company]  # processes, servers and sockets: minutes in all

LIMIT = 8


class OutboxMachine(RuleBasedStateMachine):
    """`rows` is what must be there: id -> (number, is_expendable)."""

    @initialize(kind=st.sampled_from(["memory-dir", "both"]))
    def begin(self, kind: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.place = Place(Path(self.folder.name) / "0", kind, OutboxLimits(LIMIT))
        self.outbox = self.place.open()
        self.rows: dict[int, tuple[int, bool]] = {}
        self.gone: dict[int, tuple[int, bool]] = {}
        self.open: dict[str, bytes] = {}
        self.used, self.number, self.dropped, self.kills = 0, 0, 0, 0

    def teardown(self) -> None:
        self.outbox.close()
        self.folder.cleanup()

    def _append(self, is_expendable: bool, opens: str | None = None, closes: str = "") -> None:
        self.number += 1
        event = OpenEvent(opens, b"%d" % self.number) if opens else None
        row_id = self.outbox.append(message(self.number), is_expendable, opens=event, closes=closes)
        assert row_id > self.used, "an id came twice"
        self.used = row_id
        self.rows[row_id] = self.number, is_expendable
        self.open.pop(closes, None)
        if event is not None:
            self.open[event.id] = event.payload

    def _trim(self) -> None:
        while len(self.rows) > LIMIT:
            expendable = [row_id for row_id, (_, is_expendable) in self.rows.items() if is_expendable]
            self._go(min(expendable or self.rows))
            self.dropped += 1

    def _go(self, row_id: int) -> None:
        if row_id in self.rows:
            self.gone[row_id] = self.rows.pop(row_id)

    @rule(is_expendable=st.booleans())
    def append(self, is_expendable: bool) -> None:
        self._append(is_expendable)
        self._trim()

    @rule(event=st.sampled_from("abc"))
    def begin_or_go_on(self, event: str) -> None:
        self._append(event in self.open, opens=event)
        self._trim()

    @rule(event=st.sampled_from("abc"))
    def end(self, event: str) -> None:
        self._append(False, closes=event)
        self._trim()

    @rule(count=st.integers(0, 4))
    def append_together(self, count: int) -> None:
        with self.outbox.batch():
            for _ in range(count):
                self._append(False, opens="d")
        self._trim()

    @rule()
    def append_in_vain(self) -> None:
        with suppress(ZeroDivisionError), self.outbox.batch():
            self.used = self.outbox.append(message(0), opens=OpenEvent("never", b""))
            _ = 1 // 0

    @rule(index=st.integers(0, LIMIT))
    def acknowledge(self, index: int) -> None:
        ids = [*self.rows, 1, 10**9]
        self.outbox.ack(ids[index % len(ids)])
        self._go(ids[index % len(ids)])

    @rule(index=st.integers(0, LIMIT))
    def refuse(self, index: int) -> None:
        ids = [*self.rows, 10**9]
        self.outbox.refuse(ids[index % len(ids)], "no")
        self._go(ids[index % len(ids)])

    @rule(seconds=st.sampled_from([0.4, 1.1, 11.0]))
    def time_goes_on(self, seconds: float) -> None:
        pass_time(self.outbox, self.place.clock, seconds)

    @rule()
    def everything_reaches_the_flash(self) -> None:
        if self.place.kind == "both":
            settle(self.outbox, self.place.clock)

    @rule()
    def stop_and_start(self) -> None:
        name = self.outbox.outbox_id
        next_id = self.outbox.next_id
        self.outbox.close()
        self._reopen()
        assert self.outbox.outbox_id == name
        assert self.outbox.next_id == next_id, "after an orderly end the numbering goes on"

    @rule()
    def kill_and_start(self) -> None:
        self.kills += 1
        rest(self.outbox)
        killed, name = self.outbox, self.outbox.outbox_id
        self.place = self.place.copy(Path(self.folder.name) / str(self.kills))
        killed.close()
        self._reopen()
        assert self.outbox.outbox_id == name
        for row in rows(self.outbox):
            if row.id not in self.rows:  # it was acknowledged a moment before the kill, and is sent again
                self.rows[row.id] = self.gone[row.id]
        self.rows = dict(sorted(self.rows.items()))
        self.outbox.tick()
        self._trim()

    def _reopen(self) -> None:
        self.dropped = 0
        self.outbox = self.place.open()

    @invariant()
    def it_is_as_the_model_says(self) -> None:
        found = rows(self.outbox)
        assert {row.id: int(row.message.payload) for row in found} == {
            row_id: number for row_id, (number, _) in self.rows.items()
        }
        assert [row.id for row in found] == list(self.rows)
        assert {event.id: event.payload for event in self.outbox.open_events()} == self.open
        assert (self.outbox.depth, self.outbox.dropped) == (len(self.rows), self.dropped)
        assert not [code for code in self.place.codes if code != "messages-dropped"]


TestOutboxModel = OutboxMachine.TestCase
TestOutboxModel.settings = settings(stateful_step_count=30)
TestOutboxModel.pytestmark = [pytest.mark.filterwarnings("error")]
