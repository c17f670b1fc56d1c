"""The judge of the delivery tests sees each kind of broken promise, and no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.contract.delivery_ledger import Content, Truth, TruthWriter, compare

LIVES: list[Content] = [
    ("new", "boot/gate-1", 1),
    ("new", "boot/gate-2", 2),
    ("update", "boot/gate-1", 3),
    ("end", "boot/gate-1", 4),
    ("update", "boot/gate-2", 5),
    ("end", "boot/gate-2", 6),
]


def truth_of(rows: list[Content]) -> Truth:
    """Each row is a batch of its own, numbered from 1."""
    batches = {str(index): {("box", index): row} for index, row in enumerate(rows, 1)}
    return Truth(batches, set(batches))


def payload(seq: int, content: Content, **changes: Any) -> bytes:
    kind, name, frame = content
    boot_id, event_id = name.split("/")
    said = {"type": kind, "after": {"id": event_id, "frame_sequence": frame}, "end_reason": None}
    return json.dumps({**said, "outbox_id": "box", "seq": seq, "boot_id": boot_id, **changes}).encode()


PAYLOADS = [payload(index, row) for index, row in enumerate(LIVES, 1)]


def violations(arrivals: list[bytes], truth: Truth | None = None) -> list[str]:
    return compare(truth or truth_of(LIVES), arrivals).violations


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=5))
def test_repetitions_that_come_later_break_nothing(repetitions: list[tuple[int, int]]) -> None:
    arrivals = list(PAYLOADS)
    for which, later in repetitions:
        arrivals.insert(arrivals.index(PAYLOADS[which]) + 1 + later, PAYLOADS[which])
    findings = compare(truth_of(LIVES), arrivals)
    assert findings.violations == []
    assert (findings.heard, findings.duplicates) == (6, len(repetitions))


@given(st.integers(0, 5))
def test_a_message_that_never_came_is_named(which: int) -> None:
    found = violations(PAYLOADS[:which] + PAYLOADS[which + 1 :])
    assert any(f"('box', {which + 1}): lost" in line for line in found)


@given(st.permutations(range(6)))
def test_order_within_an_id_counts_and_between_ids_does_not(order: list[int]) -> None:
    lives = {"boot/gate-1": [0, 2, 3], "boot/gate-2": [1, 4, 5]}
    is_in_order = all([which for which in order if which in life] == life for life in lives.values())
    assert (violations([PAYLOADS[which] for which in order]) == []) is is_in_order


def test_a_message_that_nobody_created_is_found() -> None:
    found = violations([*PAYLOADS, payload(7, ("new", "boot/gate-3", 7)), payload(8, ("end", "boot/gate-3", 8))])
    assert [line.partition(": ")[2][:13] for line in found] == ["never created", "never created"]


def test_an_event_without_an_end_or_with_two_is_found() -> None:
    for rows in (LIVES[:-1], [*LIVES, ("end", "boot/gate-2", 7)], [*LIVES, ("update", "boot/gate-2", 7)]):
        arrivals = [payload(index, row) for index, row in enumerate(rows, 1)]
        assert any(line.startswith("boot/gate-2: [") for line in violations(arrivals, truth_of(rows)))


def test_one_seq_for_two_messages_is_found() -> None:
    found = violations([*PAYLOADS, payload(6, ("update", "boot/gate-2", 5))])
    assert "two messages under one seq" in found[0]


def test_the_end_that_a_crash_calls_for_needs_no_creation() -> None:
    arrivals = [*PAYLOADS[:-1], payload(6, LIVES[-1], end_reason="crash", historical=True)]
    findings = compare(truth_of(LIVES[:-1]), arrivals)
    assert (findings.violations, findings.crash_ends) == ([], 1)


def test_a_batch_that_was_not_confirmed_may_be_there_or_not_but_as_a_whole() -> None:
    truth = truth_of(LIVES[:4])
    truth.batches["last"] = {("box", 5): LIVES[4], ("box", 6): LIVES[5]}
    assert violations(PAYLOADS, truth) == []
    assert any("kept in part" in line for line in violations(PAYLOADS[:5], truth))
    # A seq that an unfinished batch had in mind may go to another message: nobody had heard of it.
    truth.batches["next"], truth.done = {("box", 5): ("end", "boot/gate-2", 9)}, truth.done | {"next"}
    assert violations([*PAYLOADS[:4], payload(5, ("end", "boot/gate-2", 9))], truth) == []


def test_gaps_are_told() -> None:
    findings = compare(truth_of(LIVES), PAYLOADS[:2] + PAYLOADS[4:])
    assert (findings.gaps, findings.jumps) == ({"box": [3, 4]}, {})


def test_the_ids_that_a_start_after_a_kill_skips_are_no_gap() -> None:
    findings = compare(truth_of(LIVES), [*PAYLOADS[:2], payload(16_777_219, LIVES[2]), payload(16_777_221, LIVES[3])])
    assert (findings.gaps, findings.jumps) == ({"box": [16_777_220]}, {"box": 1})


def test_what_is_written_is_read_again_whatever_was_torn(tmp_path: Path) -> None:
    path = tmp_path / "truth"
    first = TruthWriter(path)
    first.done(first.intend("boot", "box", [(1, LIVES[0])]))
    first.intend("boot", "box", [(2, LIVES[1])])
    with path.open("ab") as file:
        file.write(b'{"batch": "boot-9", "rows": [[3, ["ne')
    second = TruthWriter(path)
    second.done(second.intend("later", "box", [(3, LIVES[2])]))
    truth = Truth.read(path)
    assert truth.created == {("box", 1): LIVES[0], ("box", 3): LIVES[2]}
    assert truth.batches["boot-2"] == {("box", 2): LIVES[1]}
