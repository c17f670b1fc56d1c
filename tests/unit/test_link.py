"""What the audit says about the link between host and device: measured beside expected, or why not."""

from __future__ import annotations

import time

import pytest

from zhcedge.app.audit import AuditReport, as_text
from zhcedge.app.audit_page import page
from zhcedge.app.link import LinkReport, LinkWatch, crossing
from zhcedge.core.errors import BackendUnavailableError
from zhcedge.core.ports import LinkRate
from zhcedge.core.types import Agent, Hop, MemoryDomain, Payload, Provenance
from zhcedge.pipeline.guard import Proof
from zhcedge.pipeline.ledger import LedgerReport
from zhcedge.pipeline.plan import RunReport
from zhcedge.pipeline.recorder import Recorder

STORAGE, HOST, PINNED, DEVICE = MemoryDomain.STORAGE, MemoryDomain.HOST, MemoryDomain.PINNED, MemoryDomain.DEVICE


def hop(name: str, source: MemoryDomain, destination: MemoryDomain, payload: Payload, size: int) -> Hop:
    return Hop(name, Agent.GPU, source, destination, payload, size, Provenance.DERIVED)


HOPS = (
    hop("bitstream in", STORAGE, HOST, Payload.BITSTREAM, 20_000),
    hop("bitstream to NVDEC", HOST, DEVICE, Payload.BITSTREAM, 20_000),
    hop("bitstream to NVDEC", HOST, DEVICE, Payload.BITSTREAM, 10_000),  # of the second channel
    hop("decode", DEVICE, DEVICE, Payload.PIXELS, 3_000_000),
    hop("parameters", PINNED, DEVICE, Payload.PARAMETERS, 80),
    hop("results", DEVICE, PINNED, Payload.RESULTS, 6_152),
)


def run_report() -> RunReport:
    return RunReport(1000, 2.0, 0, 0, LedgerReport(HOPS, 1000, {}, Proof(0, 0, frozenset()), 0), "", ())


class SimMeter:
    """Implements LinkMeter; refuses from the sample number `refuses_at` on."""

    name = "PCIe, simulated"

    def __init__(self, rate: LinkRate, refuses_at: int = 1_000_000) -> None:
        self.rate, self.refuses_at, self.count, self.is_closed = rate, refuses_at, 0, False

    def sample(self) -> LinkRate:
        if self.count >= self.refuses_at:
            raise BackendUnavailableError("Not Supported", where="NVML")
        self.count += 1
        time.sleep(0.001)
        return self.rate

    def close(self) -> None:
        self.is_closed = True


def watched(meter: SimMeter) -> LinkReport:
    with LinkWatch(meter.name, meter) as watch:
        watch.start()
        deadline_s = time.monotonic() + 30
        while not meter.count and meter.refuses_at and time.monotonic() < deadline_s:
            time.sleep(0.001)
    return watch.report(run_report())


def test_only_what_crosses_between_host_and_device_counts_once_for_each_channel_on_average() -> None:
    assert crossing(HOPS) == LinkRate(to_device=15_080, to_host=6_152)


def test_measured_rates_stand_beside_ledger_times_fps_and_a_pictures_rate() -> None:
    meter = SimMeter(LinkRate(to_device=15_080_000, to_host=1_500_000_000))
    report = watched(meter)
    assert meter.is_closed
    facts = report.as_dict()
    assert facts["picture_bytes_per_s"] == 3_000_000 * 500
    to_device, to_host = facts["to_device"], facts["to_host"]
    assert isinstance(to_device, dict)
    assert isinstance(to_host, dict)
    assert to_device["ledger_bytes_per_s"] == 15_080 * 500
    assert to_device["ratio"] == pytest.approx(2.0)
    assert to_host["share_of_pictures"] == pytest.approx(1.0)  # as if every picture had been copied
    text = "\n".join(report.lines())
    assert "measured 15.1 MB/s; ledger 15,080 bytes x 500.0 fps = 7.5 MB/s; 2.0 times that, 1.0% of pictures" in text
    assert "would be 1,500.0 MB/s" in text


def test_the_text_and_the_page_show_it_and_leave_it_out_where_there_is_no_link() -> None:
    report = watched(SimMeter(LinkRate(1e6, 2e6)))
    recorder = Recorder(memoryview(bytearray(Recorder.size(16))), 16)
    assert "PCIe, simulated" in as_text(AuditReport(run_report(), report))
    assert "<h2>The link</h2>" in page(run_report(), recorder, report)
    with LinkWatch("", None) as watch:
        watch.start()
    nothing = watch.report(run_report())
    assert nothing.lines() == []
    assert "link" not in as_text(AuditReport(run_report(), nothing))
    assert "The link" not in page(run_report(), recorder, nothing)
    assert AuditReport(run_report(), nothing).as_dict()["link"] == {
        "name": None,
        "reason": "this profile has no link to measure",
    }


def test_a_board_that_does_not_count_is_said_so() -> None:
    report = watched(SimMeter(LinkRate(0, 0), refuses_at=0))
    assert report.lines() == ["PCIe, simulated: not measured: Not Supported"]
    assert report.as_dict() == {"name": "PCIe, simulated", "reason": "Not Supported"}


def test_a_meter_that_can_not_be_opened_is_said_so() -> None:
    with LinkWatch("nvml", None, "nvidia-ml-py is not installed") as watch:
        watch.start()
    assert watch.report(run_report()).lines() == ["nvml: not measured: nvidia-ml-py is not installed"]
