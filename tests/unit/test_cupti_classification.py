"""The table that says what each function of the CUDA driver means to the ledger.

`cuda_driver_functions.txt` holds the callback names of libcupti 12.6, 13.0 and 13.5 (the union); where a libcupti is
installed, its own list is checked too.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.backends.cuda.cupti import _vendor, arguments
from zhcedge.backends.cuda.cupti.instrument import KINDS, CuptiInstrument, Mode, visible_kinds
from zhcedge.backends.cuda.cupti.table import RULES, Reader, Rule, classify, plain_name, unclassified
from zhcedge.backends.cuda.cupti.tally import BITSTREAM_BUFFERS, Call, Tally, violation
from zhcedge.core.types import GUARDED_BYTES, ViolationKind

FUNCTIONS = (Path(__file__).parents[1] / "data" / "cuda_driver_functions.txt").read_text().split()
HOST = 0x7F0000000000


def rule_of(function: str) -> Rule:
    rule = classify(function)
    assert rule is not None, function
    return rule


def test_every_function_about_memory_copies_or_waiting_has_a_rule() -> None:
    assert len(FUNCTIONS) > 800
    assert unclassified(FUNCTIONS) == []


def test_an_installed_libcupti_knows_nothing_that_the_table_does_not() -> None:
    for major in (12, 13):
        try:
            cupti = _vendor.Cupti(major)
        except _vendor.CuptiError:
            continue  # not installed; the list above stands for it
        names = list(cupti.functions().values())
        assert len(names) > 700
        assert unclassified(names) == []


def test_every_row_names_a_function_that_exists() -> None:
    assert set(RULES) <= {plain_name(name) for name in FUNCTIONS}


def test_a_function_that_a_later_driver_adds_is_reported_and_not_waved_through() -> None:
    assert unclassified(["cuMemcpyTeleportAsync_v3_ptsz", "cuMemAllocSomewhere", "cuLaunchKernel"]) == [
        "cuMemAllocSomewhere",
        "cuMemcpyTeleportAsync_v3_ptsz",
    ]


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        ("cuMemAlloc_v2", ViolationKind.DEVICE_ALLOCATION),
        ("cuMemAllocManaged", ViolationKind.DEVICE_ALLOCATION),
        ("cuMemCreate", ViolationKind.DEVICE_ALLOCATION),
        ("cuModuleLoadData", ViolationKind.DEVICE_ALLOCATION),
        ("cuMemAllocAsync_ptsz", ViolationKind.ASYNC_ALLOCATION),
        ("cuMemAllocFromPoolAsync", ViolationKind.ASYNC_ALLOCATION),
        ("cuMemFree_v2", ViolationKind.DEVICE_FREE),
        ("cuMemFreeAsync_ptsz", ViolationKind.DEVICE_FREE),
        ("cuMemHostAlloc_v2", ViolationKind.PINNED_ALLOCATION),
        ("cuMemHostRegister_v2", ViolationKind.PINNED_ALLOCATION),
        ("cuMemcpyDtoHAsync_v2_ptsz", ViolationKind.HOST_COPY),
        ("cuMemcpy_ptds", ViolationKind.HOST_COPY),
        ("cuMemcpyBatchAsync_v2", ViolationKind.HOST_COPY),
        ("cuMemcpy2DAsync_v2", ViolationKind.HOST_COPY_2D),
        ("cuMemcpy3D_v2_ptds", ViolationKind.HOST_COPY_2D),
        ("cuCtxSynchronize_v2", ViolationKind.DEVICE_SYNCHRONISE),
        ("cuStreamSynchronize_ptsz", None),
        ("cuEventSynchronize", None),
        ("cuMemcpyDtoDAsync_v2", None),
        ("cuMemcpyHtoDAsync_v2", None),
        ("cuMemsetD8Async", None),
        ("cuMemPoolGetAttribute", None),
    ],
)
def test_known_functions_mean_what_they_do(function: str, kind: ViolationKind | None) -> None:
    assert rule_of(function).kind is kind


@pytest.mark.parametrize("function", ["cuMemcpyDtoH", "cuMemcpy2D", "cuMemcpyDtoHAsync", "cuMemcpyAtoH"])
def test_first_signatures_count_every_call_since_their_arguments_have_another_layout(function: str) -> None:
    assert rule_of(function).reader is Reader.NONE
    assert rule_of(f"{function}_v2").reader is not Reader.NONE


def test_live_mode_leaves_out_the_kinds_that_a_busy_function_can_break() -> None:
    rules = tuple(rule for name in FUNCTIONS if (rule := classify(name)) is not None)
    assert visible_kinds(rules, Mode.AUDIT) == KINDS
    live = visible_kinds(rules, Mode.LIVE)
    assert set(KINDS) - set(live) == {ViolationKind.HOST_COPY, ViolationKind.HOST_COPY_2D}


# -- arguments ------------------------------------------------------------------------------------------------
def test_linear_copies_are_read_by_their_three_words() -> None:
    params = (ctypes.c_uint64 * 3)(HOST, 0x1000, 12345)
    at = ctypes.addressof(params)
    assert arguments.read(Reader.TO_HOST, at, lambda _: False) == (HOST, 12345)
    assert arguments.read(Reader.BY_POINTER, at, lambda address: address == HOST) == (HOST, 12345)
    assert arguments.read(Reader.BY_POINTER, at, lambda _: False) == (0, 12345)
    assert arguments.read(Reader.TO_DEVICE, at, lambda _: True) == (0, 12345)


class Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D of cuda.h."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("src_x", "src_y")),
        ("src_type", ctypes.c_int),
        *((name, ctypes.c_uint64) for name in ("src_host", "src_device", "src_array")),
        *((name, ctypes.c_size_t) for name in ("src_pitch", "dst_x", "dst_y")),
        ("dst_type", ctypes.c_int),
        *((name, ctypes.c_uint64) for name in ("dst_host", "dst_device", "dst_array")),
        *((name, ctypes.c_size_t) for name in ("dst_pitch", "width", "height")),
    ]


@given(width=st.integers(1, 8192), height=st.integers(1, 4320), kind=st.sampled_from([1, 2, 3, 4]))
def test_pitched_copies_are_host_copies_only_where_the_destination_is_the_host(
    width: int, height: int, kind: int
) -> None:
    copy = Copy2D(src_type=2, dst_type=kind, dst_host=HOST, dst_device=0x2000, width=width, height=height)
    params = (ctypes.c_uint64 * 1)(ctypes.addressof(copy))
    host, size = arguments.read(Reader.PITCHED_2D, ctypes.addressof(params), lambda _: False)
    assert size == width * height
    assert host == (HOST if kind == 1 else 0)


def test_a_unified_destination_is_asked_about() -> None:
    copy = Copy2D(dst_type=4, dst_device=HOST, width=8, height=8)
    params = (ctypes.c_uint64 * 1)(ctypes.addressof(copy))
    assert arguments.read(Reader.PITCHED_2D, ctypes.addressof(params), lambda address: address == HOST) == (HOST, 64)


# -- counting -------------------------------------------------------------------------------------------------
@given(size=st.integers(1, 1 << 24))
def test_a_linear_copy_to_the_host_counts_from_a_guarded_size_on(size: int) -> None:
    kind = violation(rule_of("cuMemcpyDtoHAsync_v2"), Call(1, 1, "", HOST, size))
    assert kind is (ViolationKind.HOST_COPY if size >= GUARDED_BYTES else None)


def test_a_copy_inside_a_declared_bitstream_buffer_is_no_violation_and_one_past_its_end_is() -> None:
    rule, size = rule_of("cuMemcpyDtoHAsync_v2"), 4 * GUARDED_BYTES
    BITSTREAM_BUFFERS.add(HOST, size)
    try:
        assert violation(rule, Call(1, 1, "", HOST, size)) is None
        assert violation(rule, Call(1, 1, "", HOST + 1, size)) is ViolationKind.HOST_COPY
    finally:
        BITSTREAM_BUFFERS.remove(HOST)
    assert violation(rule, Call(1, 1, "", HOST, size)) is ViolationKind.HOST_COPY


def test_no_call_is_lost_when_many_threads_note_at_once() -> None:
    tally = Tally({7: rule_of("cuMemAlloc_v2")}, {7: "cuMemAlloc_v2"}, lambda ident: "worker")

    def work() -> None:
        for _ in range(500):
            tally.note(Call(7, threading.get_ident(), "active", 0, 0))
            tally.totals()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tally.totals() == {ViolationKind.DEVICE_ALLOCATION: 4000}
    (row,) = tally.rows()
    assert (row.thread, row.phase, row.function, row.calls) == ("worker", "active", "cuMemAlloc_v2", 4000)


# -- without a GPU --------------------------------------------------------------------------------------------
class NoContext:
    @contextmanager
    def push(self) -> Iterator[None]:
        yield


def test_where_the_driver_can_not_be_watched_the_instrument_is_blind_and_says_why() -> None:
    try:
        _vendor.Driver()
    except _vendor.DriverError:
        pass
    else:
        pytest.skip("this machine has an NVIDIA driver; tests/gpu/test_cupti.py covers it")
    instrument = CuptiInstrument(NoContext())
    instrument.start()
    assert "libcuda" in instrument.problem
    for canary in instrument.canaries():
        canary.plant()
    assert instrument.counts() == {}
    assert {canary.kind for canary in instrument.canaries()} == set(KINDS)
    instrument.stop()
    instrument.stop()


def test_calls_under_a_re_warm_lease_are_added_up_apart() -> None:
    tally = Tally({1: rule_of("cuMemAlloc_v2")}, {1: "cuMemAlloc_v2"}, lambda ident: f"thread {ident}")
    for thread, is_rewarm in ((5, True), (6, False), (5, True), (5, False)):
        tally.note(Call(1, thread, "active", 0, 0, is_rewarm))
    assert tally.totals() == {ViolationKind.DEVICE_ALLOCATION: 2}
    assert tally.rewarm_totals() == {ViolationKind.DEVICE_ALLOCATION: 2}
    assert {(row.thread, row.phase, row.calls) for row in tally.rows()} == {
        ("thread 5", "re-warm", 2),
        ("thread 5", "active", 1),
        ("thread 6", "active", 1),
    }
