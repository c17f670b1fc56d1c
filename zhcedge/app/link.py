"""What the link between host and device really carries, beside what the ledger says."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zhcedge.core.errors import BackendUnavailableError
from zhcedge.core.ports import LinkMeter, LinkRate
from zhcedge.core.types import Hop, MemoryDomain, Payload
from zhcedge.pipeline.plan import RunReport

_HOST = (MemoryDomain.HOST, MemoryDomain.PINNED)
_NOTHING = LinkRate(0.0, 0.0)


@dataclass(frozen=True)
class LinkReport:
    """Measured and expected traffic of the active phase.

    Attributes:
        name: link and instrument, e.g. "PCIe, by NVML"; empty where the profile has no link.
        reason: why nothing was measured; empty when it was.
        samples: how many measurements the means are of.
        measured: mean bytes a second, everything on the link: protocol, commands, other programs.
        ledger: bytes a frame that cross the link by the ledger (bitstream, parameters, results).
        fps: frames a second of all channels together.
        picture_bytes: the largest picture that any hop moves.
    """

    name: str = ""
    reason: str = ""
    samples: int = 0
    measured: LinkRate = _NOTHING
    ledger: LinkRate = _NOTHING
    fps: float = 0.0
    picture_bytes: int = 0

    def lines(self) -> list[str]:
        """For people; empty where there is no link."""
        if not self.name:
            return []
        if self.reason:
            return [f"{self.name}: not measured: {self.reason}"]
        return [
            f"{self.name}, {self.samples} samples while frames flowed:",
            f"  to the device: {self._row(self.measured.to_device, self.ledger.to_device)}",
            f"  to the host:   {self._row(self.measured.to_host, self.ledger.to_host)}",
            f"  a picture of {self.picture_bytes:,} bytes a frame would be {_mb(self.picture_bytes * self.fps)} MB/s. "
            "The link also carries its protocol, commands and other programs' data.",
        ]

    def _row(self, measured: float, ledger_bytes: float) -> str:
        expected = ledger_bytes * self.fps
        times = f"{measured / expected:.1f} times that" if expected else "no ratio"
        return (
            f"measured {_mb(measured)} MB/s; ledger {ledger_bytes:,.0f} bytes x {self.fps:.1f} fps = "
            f"{_mb(expected)} MB/s; {times}, {self._picture_share(measured):.1%} of pictures"
        )

    def _picture_share(self, measured: float) -> float:
        """Measured rate over what one picture for every frame would be."""
        return measured / (self.picture_bytes * self.fps) if self.picture_bytes and self.fps else 0.0

    def as_dict(self) -> dict[str, object]:
        """For JSON; rates in bytes a second."""
        if not self.name or self.reason:
            return {"name": self.name or None, "reason": self.reason or "this profile has no link to measure"}
        return {
            "name": self.name,
            "reason": None,
            "samples": self.samples,
            "fps": self.fps,
            "picture_bytes_per_s": self.picture_bytes * self.fps,
            "to_device": self._facts(self.measured.to_device, self.ledger.to_device),
            "to_host": self._facts(self.measured.to_host, self.ledger.to_host),
        }

    def _facts(self, measured: float, ledger_bytes: float) -> dict[str, float | None]:
        expected = ledger_bytes * self.fps
        return {
            "measured_bytes_per_s": measured,
            "ledger_bytes_per_frame": ledger_bytes,
            "ledger_bytes_per_s": expected,
            "ratio": measured / expected if expected else None,
            "share_of_pictures": self._picture_share(measured),
        }


class LinkWatch:
    """Samples a meter on a thread of its own from `start` to the end of the block.

    Args:
        meter: None where the profile has none.
        reason: why there is none although the profile names one.
    """

    def __init__(self, name: str, meter: LinkMeter | None, reason: str = "") -> None:
        self._name, self._meter, self._reason = name, meter, reason
        self._samples: list[LinkRate] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="link meter", daemon=True)

    def __enter__(self) -> LinkWatch:
        return self

    def start(self) -> None:
        """From now on frames flow. At most once."""
        if self._meter is not None:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._meter is not None:
            self._meter.close()

    def _run(self) -> None:
        try:
            while self._meter is not None and not self._stopping.is_set():
                self._samples.append(self._meter.sample())
        except BackendUnavailableError as error:
            self._reason = error.what

    def report(self, run: RunReport) -> LinkReport:
        """The comparison, after the block."""
        hops = run.ledger.hops
        pictures = [hop.bytes_per_frame for hop in hops if hop.payload is Payload.PIXELS]
        reason = self._reason or ("" if self._samples or self._meter is None else "the run was too short")
        return LinkReport(
            self._name,
            reason,
            len(self._samples),
            _mean(self._samples),
            crossing(hops),
            run.fps,
            max(pictures, default=0),
        )


def crossing(hops: Sequence[Hop]) -> LinkRate:
    """Bytes a frame that cross between host and device memory, each way.

    Every channel states its own hops, so hops of one name are averaged: right where channels have equal frame rates
    and the same sinks.
    """
    return LinkRate(
        _sum_of_means(hop for hop in hops if hop.source in _HOST and hop.destination is MemoryDomain.DEVICE),
        _sum_of_means(hop for hop in hops if hop.source is MemoryDomain.DEVICE and hop.destination in _HOST),
    )


def _sum_of_means(hops: Iterable[Hop]) -> float:
    by_name: dict[str, list[int]] = {}
    for hop in hops:
        by_name.setdefault(hop.name, []).append(hop.bytes_per_frame)
    return sum(sum(sizes) / len(sizes) for sizes in by_name.values())


def _mean(rates: Sequence[LinkRate]) -> LinkRate:
    count = max(len(rates), 1)
    return LinkRate(sum(rate.to_device for rate in rates) / count, sum(rate.to_host for rate in rates) / count)


def _mb(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:,.1f}"
