"""The CUPTI instrument on a real driver: canaries, what is let pass, and who did it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.gpu import support_codec as support
from zhcedge.backends.cuda.cupti.instrument import KINDS, CuptiInstrument, Mode
from zhcedge.backends.cuda.cupti.tally import BITSTREAM_BUFFERS
from zhcedge.core.types import GUARDED_BYTES, ViolationKind
from zhcedge.pipeline.guard import Guard, GuardPolicy

if TYPE_CHECKING:
    from zhcedge.backends.cuda.context import CudaContext

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def context() -> Iterator[CudaContext]:
    opened = support.open_context()
    yield opened
    opened.close()


@pytest.fixture
def instrument(context: CudaContext) -> Iterator[CuptiInstrument]:
    made = CuptiInstrument(context)
    made.start()
    assert made.problem == ""
    yield made
    made.stop()


def changed(instrument: CuptiInstrument, before: dict[ViolationKind, int]) -> dict[ViolationKind, int]:
    return {kind: count - before[kind] for kind, count in instrument.counts().items() if count != before[kind]}


def test_every_canary_is_seen_as_itself_and_nothing_else(context: CudaContext) -> None:
    guard = Guard([CuptiInstrument(context)], frozenset(KINDS), GuardPolicy.COUNT)
    try:
        proof = guard.prove()
    finally:
        guard.stop()
    assert (proof.planted, proof.seen, proof.blind) == (len(KINDS), len(KINDS), frozenset())


def test_live_mode_sees_what_it_claims_and_claims_no_more(context: CudaContext) -> None:
    instrument = CuptiInstrument(context, Mode.LIVE)
    guard = Guard([instrument], frozenset(KINDS), GuardPolicy.COUNT)
    try:
        proof = guard.prove()
    finally:
        guard.stop()
    assert proof.seen == proof.planted == len(KINDS) - 2
    assert proof.blind == {ViolationKind.HOST_COPY, ViolationKind.HOST_COPY_2D}


def test_copies_within_the_device_up_to_it_and_small_ones_down_pass(
    context: CudaContext, instrument: CuptiInstrument
) -> None:
    from zhcedge.backends.cuda import _vendor
    from zhcedge.backends.cuda._vendor import pycuda

    small, large = np.zeros(GUARDED_BYTES - 1, np.uint8), np.zeros(1 << 20, np.uint8)
    stream = context.create_stream()
    with context.push():
        one, two = pycuda.mem_alloc(1 << 20), pycuda.mem_alloc(1 << 20)
        before = instrument.counts()
        pycuda.memcpy_htod(one, large)
        pycuda.memcpy_dtod(two, one, 1 << 20)
        pycuda.memcpy_dtoh(small, one)
        _vendor.Copy2d(int(one), 1024, int(two), 1024, 1024, 512).issue(stream.prepared)
        stream.synchronize()
        assert changed(instrument, before) == {}
        pycuda.memcpy_dtoh(large, one)
        assert changed(instrument, before) == {ViolationKind.HOST_COPY: 1}
        one.free()
        two.free()
    sizes = {row.function: row.size_bytes for row in instrument.rows() if "HtoD" in row.function}
    assert sum(sizes.values()) == 1 << 20


def test_a_copy_into_a_declared_bitstream_buffer_passes(context: CudaContext, instrument: CuptiInstrument) -> None:
    from zhcedge.backends.cuda._vendor import pycuda

    host = np.zeros(1 << 20, np.uint8)
    with context.push():
        memory = pycuda.mem_alloc(1 << 20)
        BITSTREAM_BUFFERS.add(host.ctypes.data, host.nbytes)
        try:
            before = instrument.counts()
            pycuda.memcpy_dtoh(host, memory)
            assert changed(instrument, before) == {}
        finally:
            BITSTREAM_BUFFERS.remove(host.ctypes.data)
            memory.free()


def test_calls_are_booked_under_their_thread_and_phase(context: CudaContext, instrument: CuptiInstrument) -> None:
    from zhcedge.backends.cuda._vendor import pycuda

    def work() -> None:
        instrument.watch_thread()
        with context.push():
            pycuda.mem_alloc(GUARDED_BYTES).free()

    instrument.enter_phase("warming-up")
    work()
    instrument.enter_phase("active")
    thread = threading.Thread(target=work, name="reader cam")
    thread.start()
    thread.join()
    rows = {(row.thread, row.phase, row.kind): row.calls for row in instrument.rows()}
    main = threading.current_thread().name
    assert rows[main, "warming-up", ViolationKind.DEVICE_ALLOCATION] == 1
    assert rows["reader cam", "active", ViolationKind.DEVICE_ALLOCATION] == 1
    assert rows["reader cam", "active", ViolationKind.DEVICE_FREE] == 1


def test_a_second_instrument_says_that_it_is_blind(context: CudaContext, instrument: CuptiInstrument) -> None:
    second = CuptiInstrument(context)
    second.start()
    try:
        if not second.problem:
            pytest.skip("cannot run here: this CUPTI allows several subscribers")
        assert second.counts() == {}
    finally:
        second.stop()
    before = instrument.counts()
    with context.push():
        from zhcedge.backends.cuda._vendor import pycuda

        pycuda.mem_alloc(GUARDED_BYTES).free()
    assert changed(instrument, before) == {ViolationKind.DEVICE_ALLOCATION: 1, ViolationKind.DEVICE_FREE: 1}


def test_decoding_over_two_loops_allocates_frees_and_synchronises_nothing(
    context: CudaContext, instrument: CuptiInstrument, tmp_path: Path
) -> None:
    from zhcedge.backends.nvcodec.source import NvCodecSource

    clip = tmp_path / "clip.mp4"
    support.clip_tool().write(clip, "h264", 8, 1280, 720, 40, 3)
    source = NvCodecSource(support.request(clip, is_looped=True), support.GpuDevice(context))
    try:
        source.open()
        for _ in range(50):  # one joint in warm-up
            source.read(1.0).release()
        source.rewind()
        before = instrument.counts()
        for _ in range(100):
            source.read(1.0).release()
        assert changed(instrument, before) == {}, instrument.rows()
    finally:
        source.close()


def test_a_threads_calls_under_a_re_warm_lease_are_booked_apart_and_anothers_are_not(context: CudaContext) -> None:
    from zhcedge.backends.cuda._vendor import pycuda

    guard = Guard([CuptiInstrument(context, Mode.LIVE)], frozenset(KINDS), GuardPolicy.COUNT)

    def allocate() -> None:
        with context.push():
            pycuda.mem_alloc(GUARDED_BYTES).free()

    def elsewhere() -> None:
        thread = threading.Thread(target=allocate)
        thread.start()
        thread.join()

    try:
        guard.seal()
        with guard.rewarm("test"):
            allocate()
            elsewhere()
        assert guard.rewarm_totals() == {ViolationKind.DEVICE_ALLOCATION: 1, ViolationKind.DEVICE_FREE: 1}
        found = {kind: count for kind, count in guard.violations().items() if count}
        assert found == {ViolationKind.DEVICE_ALLOCATION: 1, ViolationKind.DEVICE_FREE: 1}
        assert guard.rewarms() == {"test": 1}
    finally:
        guard.stop()
