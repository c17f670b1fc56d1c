"""`zhc-edge audit`: plant one of each violation, run the real frame path, and say what moved and what was allocated."""

from __future__ import annotations

import tempfile
from pathlib import Path

from zhcedge.app.audit_page import page
from zhcedge.app.wiring import RunContext, build_plan
from zhcedge.config.schema import ChannelConfig, Config
from zhcedge.core.files import check_folder, write_whole
from zhcedge.core.lifecycle import Lifecycle
from zhcedge.pipeline.plan import RunReport
from zhcedge.pipeline.segment import Segment
from zhcedge.service.clock import SystemClock
from zhcedge.service.log import set_up_logging


def audit(config: Config, *, frames: int, html: Path | None = None, log_level: str = "WARNING") -> RunReport:
    """Run the configured channels with every instrument. Blocks.

    Args:
        frames: to read from each channel in the active phase; 0 for all that a file has.
        html: file for a page that shows one frame's journey; None for none.

    The sinks work as configured, into a temporary folder. Raises what the run raises.
    """
    set_up_logging(log_level)
    if html is not None:
        check_folder(html, "the page")
    with tempfile.TemporaryDirectory(prefix="zhc-edge-audit-") as folder:
        segment = Segment()
        context = RunContext(segment, SystemClock(), Lifecycle(), is_audit=True)
        with build_plan(with_outputs_in(Path(folder), config), context) as plan:
            report = plan.warm_up().process(frames)
    if html is not None:
        write_whole(html, page(report, segment.frame_recorder).encode(), "the page")
    return report


def with_outputs_in(folder: Path, config: Config) -> Config:
    """The same configuration with every sink writing into `folder`."""

    def moved(name: str, channel: ChannelConfig) -> ChannelConfig:
        sinks = tuple(
            sink.model_copy(update={"path": folder / f"{name}-{index}{sink.path.suffix}"})
            for index, sink in enumerate(channel.sinks)
        )
        return channel.model_copy(update={"sinks": sinks})

    channels = {name: moved(name, channel) for name, channel in config.channels.items()}
    return config.model_copy(update={"channels": channels, "output_dir": folder})


def as_text(report: RunReport) -> str:
    """The ledger for people: rows, canaries, counts, verdict."""
    ledger = report.ledger
    return "\n".join(
        [
            f"{report.frames} frames in the active phase, {ledger.pool_bytes / 2**20:.1f} MiB of pools before the seal",
            "",
            ledger.table(),
            "",
            f"canaries: {ledger.proof.planted} planted, {ledger.proof.seen} seen",
            *(f"after seal: {kind.value:<24}{count}" for kind, count in ledger.violations.items()),
            *(f"not visible on this machine: {kind.value}" for kind in sorted(ledger.proof.blind)),
            f"verdict: {ledger.verdict.value}",
        ]
    )
