"""The ledger: what moved, how it is known, and whether the run kept its promise.

`fail`: a violation was counted in the active phase. `unproved`: none was, but something that the run claims could
not be seen on this machine, or no frame came. `pass`: none was, frames came, and every planted canary was seen.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from zhcedge.core.types import Hop, ViolationKind
from zhcedge.pipeline.guard import Proof


class Verdict(str, enum.Enum):
    PASS = "pass"
    FAIL = "fail"
    UNPROVED = "unproved"


@dataclass(frozen=True)
class LedgerReport:
    """The account of one run.

    Attributes:
        hops: movements of bytes per frame, as the backends state or measure them.
        frames: frames of the active phase that they apply to.
        violations: counts since the seal, one for every kind that was watched.
        proof: what the canaries showed.
        pool_bytes: memory that the arena handed out.
        rewarm: what happened under re-warm leases since the seal, kinds that happened only. Not judged: a stream that
            changed its format, or a channel that was added, needs memory.
        rewarms: leases that something was booked to since the seal, by their reason.
    """

    hops: tuple[Hop, ...]
    frames: int
    violations: dict[ViolationKind, int]
    proof: Proof
    pool_bytes: int
    rewarm: Mapping[ViolationKind, int] = field(default_factory=dict)
    rewarms: Mapping[str, int] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        if any(self.violations.values()):
            return Verdict.FAIL
        if not self.frames or self.proof.blind or self.proof.seen != self.proof.planted:
            return Verdict.UNPROVED
        return Verdict.PASS

    def text(self) -> str:
        """One line: "after seal: host array 0, arena growth 0; canaries 2 of 2 seen: pass"."""
        counts = ", ".join(f"{kind.value} {count}" for kind, count in self.violations.items()) or "nothing watched"
        names = ", ".join(sorted(kind.value for kind in self.proof.blind))
        blind = f"; not visible here: {names}" if names else ""
        canaries = f"canaries {self.proof.seen} of {self.proof.planted} seen"
        rewarm = f"; {self.rewarm_text()}" if self.rewarms else ""
        empty = "" if self.frames else "; no frame was processed"
        return f"after seal: {counts}{rewarm}; {canaries}{blind}{empty}: {self.verdict.value}"

    def rewarm_text(self) -> str:
        """One clause: "2 re-warm leases (front: new size 2): device allocation 6, device free 4"."""
        leases = ", ".join(f"{reason} {count}" for reason, count in self.rewarms.items())
        counts = ", ".join(f"{kind.value} {count}" for kind, count in self.rewarm.items()) or "nothing counted"
        total = sum(self.rewarms.values())
        return f"{total} re-warm lease{'' if total == 1 else 's'} ({leases}): {counts}"

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "verdict": self.verdict.value,
            "text": self.text(),
            "frames": self.frames,
            "violations": {kind.value: count for kind, count in self.violations.items()},
            "rewarm": {kind.value: count for kind, count in self.rewarm.items()},
            "rewarm_leases": dict(self.rewarms),
            "canaries_planted": self.proof.planted,
            "canaries_seen": self.proof.seen,
            "not_visible": sorted(kind.value for kind in self.proof.blind),
            "pool_bytes": self.pool_bytes,
            "hops": [hop_row(hop, self.frames) for hop in self.hops],
        }

    def table(self) -> str:
        """The rows for people, aligned."""
        rows: list[tuple[str, ...]] = [("hop", "by", "from", "to", "payload", "bytes/frame", "known")]
        rows += [_cells(hop) for hop in self.hops]
        return "\n".join(_aligned(rows))


def hop_row(hop: Hop, frames: int) -> dict[str, object]:
    return {
        "hop": hop.name,
        "agent": hop.agent.value,
        "source": hop.source.value,
        "destination": hop.destination.value,
        "payload": hop.payload.value,
        "bytes_per_frame": hop.bytes_per_frame,
        "bytes": hop.bytes_per_frame * frames,
        "provenance": hop.provenance.value,
        "reason": hop.reason,
    }


def _cells(hop: Hop) -> tuple[str, ...]:
    return (
        hop.name,
        hop.agent.value,
        hop.source.value,
        hop.destination.value,
        hop.payload.value,
        f"{hop.bytes_per_frame:,}",
        hop.provenance.value,
    )


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
