"""`zhc-edge audit`: plant one of each violation, run the real frame path, and say what moved and what was allocated."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from zhcedge.app.audit_page import page
from zhcedge.app.link import LinkReport, LinkWatch
from zhcedge.app.wiring import RunContext, build_plan
from zhcedge.backends.registry import METERS
from zhcedge.config.channel import ChannelConfig
from zhcedge.config.schema import Config
from zhcedge.core.errors import BackendUnavailableError
from zhcedge.core.files import check_folder, write_whole
from zhcedge.core.lifecycle import Lifecycle
from zhcedge.core.ports import Device
from zhcedge.pipeline.plan import RunReport
from zhcedge.pipeline.segment import Segment
from zhcedge.profiles import profile
from zhcedge.service.clock import SystemClock
from zhcedge.service.log import set_up_logging


@dataclass(frozen=True)
class AuditReport:
    """What the run did, and what the link between host and device carried meanwhile."""

    run: RunReport
    link: LinkReport

    def as_dict(self) -> dict[str, object]:
        """For JSON: the ledger, and the link beside it."""
        return {**self.run.ledger.as_dict(), "link": self.link.as_dict()}


def audit(config: Config, *, frames: int, html: Path | None = None, log_level: str = "WARNING") -> AuditReport:
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
        devices: list[Device[object]] = []
        context = RunContext(segment, SystemClock(), Lifecycle(), is_audit=True, on_device=devices.append)
        with (
            build_plan(with_outputs_in(Path(folder), config), context) as plan,
            _link_watch(profile(config.profile).meter, devices[0]) as watch,  # what it imports comes before the seal
        ):
            runtime = plan.warm_up()
            watch.start()
            run = runtime.process(frames)
    report = AuditReport(run, watch.report(run))
    if html is not None:
        write_whole(html, page(run, segment.frame_recorder, report.link).encode(), "the page")
    return report


def _link_watch(meter: str, device: Device[object]) -> LinkWatch:
    if not meter:
        return LinkWatch("", None)
    try:
        opened = METERS.get(meter)(device)
    except BackendUnavailableError as error:
        return LinkWatch(meter, None, str(error))
    return LinkWatch(opened.name, opened)


def with_outputs_in(folder: Path, config: Config) -> Config:
    """The same configuration with every sink writing into `folder`."""

    def moved(name: str, channel: ChannelConfig) -> ChannelConfig:
        sinks = tuple(
            sink.model_copy(update={"path": folder / f"{name}-{index}{sink.path.suffix}"}) if sink.path else sink
            for index, sink in enumerate(channel.sinks)
        )
        return channel.model_copy(update={"sinks": sinks})

    channels = {name: moved(name, channel) for name, channel in config.channels.items()}
    return config.model_copy(update={"channels": channels, "output_dir": folder})


def as_text(report: AuditReport) -> str:
    """The ledger for people: rows, link, canaries, counts, verdict."""
    ledger, link, frames = report.run.ledger, report.link.lines(), report.run.frames
    return "\n".join(
        [
            f"{frames} frames in the active phase, {ledger.pool_bytes / 2**20:.1f} MiB of pools before the seal",
            "",
            ledger.table(),
            "",
            *link,
            *([""] if link else []),
            f"canaries: {ledger.proof.planted} planted, {ledger.proof.seen} seen",
            *(f"after seal: {kind.value:<24}{count}" for kind, count in ledger.violations.items()),
            *([ledger.rewarm_text()] if ledger.rewarms else []),
            *(f"not visible on this machine: {kind.value}" for kind in sorted(ledger.proof.blind)),
            *([] if ledger.frames else ["no frame was processed in the active phase, so nothing is proved"]),
            f"verdict: {ledger.verdict.value}",
        ]
    )
