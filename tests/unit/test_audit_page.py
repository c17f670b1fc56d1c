"""The page of one frame's journey: complete, self-contained, and of the right frame."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from zhcedge.app.audit_page import page
from zhcedge.core.ports import StageTime
from zhcedge.core.types import Agent, FrameInfo, Hop, MemoryDomain, Payload, Provenance
from zhcedge.pipeline.guard import Proof
from zhcedge.pipeline.ledger import LedgerReport
from zhcedge.pipeline.plan import RunReport
from zhcedge.pipeline.recorder import Recorder
from zhcedge.pipeline.spans import Spans

MS = 1_000_000
HOPS = (
    Hop(
        "ingest",
        Agent.COPY_ENGINE,
        MemoryDomain.DEVICE,
        MemoryDomain.DEVICE,
        Payload.PIXELS,
        3_110_400,
        Provenance.DERIVED,
    ),
    Hop("results <b>", Agent.GPU, MemoryDomain.DEVICE, MemoryDomain.PINNED, Payload.RESULTS, 6_152, Provenance.DERIVED),
)


def report() -> RunReport:
    ledger = LedgerReport(HOPS, 9, {}, Proof(0, 0, frozenset()), 0)
    return RunReport(9, 1.0, 0, 0, ledger, "", ())


def recorder(latencies_ms: list[int]) -> Recorder:
    """Frames one second apart, each `latencies_ms` from read to results, of which a stage takes half."""
    recorded = Recorder(memoryview(bytearray(Recorder.size(256))), 256)
    spans = Spans(recorded, {0})
    spans.add(0, "door")
    for sequence, latency_ms in enumerate(latencies_ms):
        start_ns = (1 + sequence) * 1000 * MS
        info = FrameInfo(0, sequence, 0, start_ns + MS)
        end_ns = start_ns + latency_ms * MS
        spans.read(info, start_ns)
        spans.ingest(info, start_ns + 2 * MS)
        stage = StageTime("engine", end_ns - latency_ms * MS // 2 - MS, end_ns - MS)
        spans.stages(0, info, [stage], start_ns, end_ns)
        spans.collect(info, end_ns - MS, end_ns)
    return recorded


def drawings(html: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.S)]


def test_the_frame_of_median_latency_is_drawn_with_every_stage_and_copy() -> None:
    html = page(report(), recorder([20, 80, 40, 30, 60]))
    bars, arrows = drawings(html)
    titles = [title.text or "" for title in bars.iter("title")]
    assert titles[0].startswith("read: 1.000 ms on reader door")
    assert "engine: 20.000 ms on lane 0" in titles
    assert [title.split(":")[0] for title in titles] == ["read", "ingest", "engine", "collect"]
    assert "40.00 ms from read to results" in html
    assert [(title.text or "").split(":")[0] for title in arrows.iter("title")] == ["ingest", "results <b>"]
    assert "3,110,400 B" in html


def test_the_page_needs_no_other_file_and_no_script() -> None:
    html = page(report(), recorder([20, 30]))
    assert not re.search(r"https?:|<script|<link|<img|@import", html)


def test_a_run_without_a_whole_frame_says_so() -> None:
    html = page(report(), recorder([]))
    assert "No frame was recorded from end to end" in html
