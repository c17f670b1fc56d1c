"""The one error tree. A foreign error is translated into one of these once, at the boundary where it appears.

Each class carries the exit code of the command line (sysexits(3) numbers where one fits), so that a service
manager can tell a typing mistake from a broken disk.
"""

from __future__ import annotations


class ZhcEdgeError(Exception):
    """Root of the tree: says what happened, where, and what to do about it.

    Args:
        what: one clause, without a full stop: "the clip ends in the middle of a frame".
        where: file, key, topic or stage the fault belongs to; empty when there is none.
        fix: one imperative clause: "copy the file again"; empty when nothing can be done.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(what, where, fix)

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}; {self.fix}" if self.fix else text


class UsageError(ZhcEdgeError):
    """The command line itself makes no sense."""

    exit_code = 2


class ConfigError(ZhcEdgeError):
    """The configuration can't be used; the message lists every problem found, not the first one only."""

    exit_code = 78


class ModelError(ZhcEdgeError):
    """A model bundle is missing, changed, or does not fit its manifest."""

    exit_code = 65


class SourceMissingError(ZhcEdgeError):
    """The input does not exist or may not be read."""

    exit_code = 66


class SourceRefusedError(SourceMissingError):
    """A stream's server does not let us in: user name and password are missing or wrong."""


class MediaError(ZhcEdgeError):
    """The input exists and is not decodable video, or stops being so."""

    exit_code = 65


class OutputError(ZhcEdgeError):
    """A sink can't write: read-only folder, full disk, refused codec."""

    exit_code = 73


class StoreError(ZhcEdgeError):
    """A folder for what must outlast the process can't be used: missing, read-only, taken, or of a newer version."""

    exit_code = 73


class BackendUnavailableError(ZhcEdgeError):
    """A backend's vendor package or device is absent; `fix` is the line that installs it."""

    exit_code = 69


class NotNowError(ZhcEdgeError):
    """What was asked for can't be done at this moment and may work later: something is busy, paused or away."""

    exit_code = 75


class BrokerError(ZhcEdgeError):
    """The MQTT broker refuses us or can't be reached."""

    exit_code = 69


class DaemonAwayError(ZhcEdgeError):
    """No daemon answers on the control socket."""

    exit_code = 69


class PipelineError(ZhcEdgeError):
    """A stage, lane or thread of the frame path failed; the run can't go on."""

    exit_code = 70


class HangError(PipelineError):
    """The frame process stands still, most likely inside a driver, and was killed for it."""


class PhaseError(ZhcEdgeError):
    """Something was asked for in a phase that does not allow it, e.g. an allocation after the seal."""

    exit_code = 70


class LedgerViolationError(ZhcEdgeError):
    """The guard's policy is `fail` and the frame path broke one of the ledger's promises."""

    exit_code = 1
