"""The guard and the ledger: they see what is planted, exactly, and never call blindness a pass."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from zhcedge.core.errors import LedgerViolationError
from zhcedge.core.ports import Canary
from zhcedge.core.types import GUARDED_BYTES, ViolationKind
from zhcedge.pipeline.guard import Guard, GuardPolicy
from zhcedge.pipeline.host_memory import OBJECT_BYTES, ArenaGrowth, HostArrays, HostObjects
from zhcedge.pipeline.ledger import LedgerReport, Verdict

ARRAYS = frozenset({ViolationKind.HOST_ARRAY})


def in_watched_thread(guard: Guard, *bodies: object) -> None:
    def run() -> None:
        guard.watch_thread()
        for body in bodies:
            body()  # type: ignore[operator]

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def test_one_large_array_in_a_watched_thread_is_exactly_one_violation() -> None:
    guard = Guard([HostArrays()], ARRAYS, GuardPolicy.COUNT)
    guard.prove()
    guard.seal()
    in_watched_thread(guard, lambda: np.zeros((576, 768), np.uint8))
    assert guard.check() == {ViolationKind.HOST_ARRAY: 1}


@pytest.mark.parametrize("make", [np.empty, np.zeros, np.ones])
def test_the_limit_is_exact(make: object) -> None:
    guard = Guard([HostArrays()], ARRAYS, GuardPolicy.COUNT)
    guard.seal()
    in_watched_thread(guard, lambda: make(GUARDED_BYTES - 1, np.uint8))  # type: ignore[operator]
    assert guard.violations() == {ViolationKind.HOST_ARRAY: 0}
    in_watched_thread(guard, lambda: make(GUARDED_BYTES, np.uint8))  # type: ignore[operator]
    assert guard.violations() == {ViolationKind.HOST_ARRAY: 1}


def test_a_growing_array_and_a_temporary_are_seen() -> None:
    guard = Guard([HostArrays()], ARRAYS, GuardPolicy.COUNT)
    small = np.zeros(10, np.uint8)
    image = np.zeros((300, 300), np.float32)
    guard.seal()
    in_watched_thread(guard, lambda: small.copy().resize(GUARDED_BYTES, refcheck=False), lambda: image + 1)
    assert guard.violations()[ViolationKind.HOST_ARRAY] == 2


def test_threads_that_are_not_the_frame_paths_are_left_alone() -> None:
    guard = Guard([HostArrays()], ARRAYS, GuardPolicy.COUNT)
    guard.seal()
    np.zeros(10 * GUARDED_BYTES)
    assert guard.violations() == {ViolationKind.HOST_ARRAY: 0}


def test_arrays_outlive_the_instrument() -> None:
    guard = Guard([HostArrays()], ARRAYS, GuardPolicy.COUNT)
    kept: list[np.ndarray[tuple[int, ...], np.dtype[np.float64]]] = []
    in_watched_thread(guard, lambda: kept.append(np.arange(100_000.0)))
    guard.stop()
    del guard
    assert kept.pop().sum() == 4999950000.0


def test_every_canary_is_seen_as_itself_alone() -> None:
    arrays = HostArrays()
    refused = [0]

    def plant() -> None:
        refused[0] += 1

    instruments = [arrays, HostObjects(arrays), ArenaGrowth(lambda: refused[0], plant)]
    claims = ARRAYS | {ViolationKind.HOST_OBJECT, ViolationKind.ARENA_GROWTH}
    guard = Guard(instruments, claims, GuardPolicy.COUNT)
    proof = guard.prove()
    guard.stop()
    assert (proof.planted, proof.seen, proof.blind) == (3, 3, frozenset())


def test_the_audit_sees_a_large_object_that_is_no_array() -> None:
    arrays = HostArrays()
    guard = Guard([arrays, HostObjects(arrays)], ARRAYS, GuardPolicy.COUNT)
    guard.seal()
    bytes(2 * OBJECT_BYTES)
    assert guard.violations()[ViolationKind.HOST_OBJECT] == 1
    guard.stop()


def test_policy_fail_stops_the_run_with_what_was_found() -> None:
    guard = Guard([HostArrays()], ARRAYS, GuardPolicy.FAIL)
    guard.seal()
    guard.check()
    in_watched_thread(guard, lambda: np.zeros(GUARDED_BYTES))
    with pytest.raises(LedgerViolationError, match="1 host array"):
        guard.check()


def test_a_blind_instrument_makes_the_verdict_unproved_and_never_pass() -> None:
    guard = Guard([HostArrays()], ARRAYS | {ViolationKind.DEVICE_ALLOCATION}, GuardPolicy.COUNT)
    proof = guard.prove()
    guard.seal()
    report = LedgerReport((), 1, guard.violations(), proof, 0)
    assert report.verdict is Verdict.UNPROVED
    assert "device allocation" in report.text()


def test_a_canary_seen_as_something_else_does_not_count_as_seen() -> None:
    guard = Guard([HostArrays()], ARRAYS, GuardPolicy.COUNT)

    def plant_two() -> None:
        in_watched_thread(guard, lambda: np.zeros(99_999), lambda: np.zeros(99_999))

    two_arrays = Canary(ViolationKind.HOST_ARRAY, plant_two)
    proof = guard.prove([two_arrays])
    assert (proof.planted, proof.seen) == (1, 0)
    assert LedgerReport((), 1, {}, proof, 0).verdict is Verdict.UNPROVED


def test_a_violation_is_a_fail_even_when_all_canaries_were_seen() -> None:
    guard = Guard([HostArrays()], ARRAYS, GuardPolicy.COUNT)
    proof = guard.prove()
    report = LedgerReport((), 1, {ViolationKind.HOST_ARRAY: 1}, proof, 0)
    assert report.verdict is Verdict.FAIL


def test_no_frame_proves_nothing_and_a_violation_is_one_all_the_same() -> None:
    guard = Guard([HostArrays()], ARRAYS, GuardPolicy.COUNT)
    proof = guard.prove()
    empty = LedgerReport((), 0, {ViolationKind.HOST_ARRAY: 0}, proof, 0)
    assert empty.verdict is Verdict.UNPROVED
    assert empty.text().endswith("; no frame was processed: unproved")
    assert LedgerReport((), 0, {ViolationKind.HOST_ARRAY: 1}, proof, 0).verdict is Verdict.FAIL


# -- re-warm leases ------------------------------------------------------------------------------------------------
def array() -> None:
    np.zeros(GUARDED_BYTES)


def test_under_a_lease_a_threads_arrays_are_booked_apart() -> None:
    guard = Guard([HostArrays()], ARRAYS, GuardPolicy.FAIL)
    guard.prove()
    guard.seal()

    def under_lease() -> None:
        with guard.rewarm("front: new size"), guard.rewarm("inner"):
            array()
            array()

    in_watched_thread(guard, under_lease)
    assert guard.check() == {ViolationKind.HOST_ARRAY: 0}
    assert guard.rewarm_totals() == {ViolationKind.HOST_ARRAY: 2}
    assert guard.rewarms() == {"front: new size": 1}
    in_watched_thread(guard, array)
    with pytest.raises(LedgerViolationError):
        guard.check()
    guard.stop()
    assert guard.rewarm_totals() == {ViolationKind.HOST_ARRAY: 2}


def test_another_threads_violation_counts_while_a_lease_is_open() -> None:
    guard = Guard([HostArrays()], ARRAYS, GuardPolicy.COUNT)
    guard.seal()
    with guard.rewarm("front: new size"):
        in_watched_thread(guard, array)
    assert guard.violations() == {ViolationKind.HOST_ARRAY: 1}
    assert guard.rewarm_totals() == {}
    assert guard.rewarms() == {}, "nothing was booked to it"


def test_a_lease_ends_with_an_error_and_what_came_before_the_seal_is_not_reported() -> None:
    guard = Guard([HostArrays()], ARRAYS, GuardPolicy.COUNT)

    def fail() -> None:
        array()
        raise ValueError("oops")

    def under_lease() -> None:
        with pytest.raises(ValueError, match="oops"), guard.rewarm("early"):
            fail()

    in_watched_thread(guard, under_lease)
    assert guard.rewarm_totals() == {}
    guard.seal()
    in_watched_thread(guard, array)
    assert (guard.violations(), guard.rewarm_totals(), guard.rewarms()) == ({ViolationKind.HOST_ARRAY: 1}, {}, {})


def test_large_objects_of_all_threads_are_booked_to_an_open_lease() -> None:
    arrays = HostArrays()
    guard = Guard([arrays, HostObjects(arrays)], ARRAYS, GuardPolicy.COUNT)
    guard.seal()
    with guard.rewarm("front: new size"):
        bytes(2 * OBJECT_BYTES)
        assert guard.violations()[ViolationKind.HOST_OBJECT] == 0
    assert guard.rewarm_totals()[ViolationKind.HOST_OBJECT] >= 1
    bytes(2 * OBJECT_BYTES)
    assert guard.violations()[ViolationKind.HOST_OBJECT] == 1
    guard.stop()


def test_the_report_tells_leases_and_does_not_judge_them() -> None:
    guard = Guard([HostArrays()], ARRAYS, GuardPolicy.COUNT)
    proof = guard.prove()
    quiet = LedgerReport((), 1, {ViolationKind.HOST_ARRAY: 0}, proof, 0)
    assert "re-warm" not in quiet.text()
    assert (quiet.as_dict()["rewarm"], quiet.as_dict()["rewarm_leases"]) == ({}, {})
    report = LedgerReport(
        (), 1, {ViolationKind.HOST_ARRAY: 0}, proof, 0, {ViolationKind.DEVICE_FREE: 4}, {"front: new size": 2}
    )
    assert report.verdict is Verdict.PASS
    assert "2 re-warm leases (front: new size 2): device free 4" in report.text()
    assert report.as_dict()["rewarm"] == {"device free": 4}
    assert report.as_dict()["rewarm_leases"] == {"front: new size": 2}
