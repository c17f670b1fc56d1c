"""Taking another configuration while the daemon runs: checked first, applied as a whole, tried, and taken back when it
turns out to be no good."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from zhcedge.app.check import check, load_configuration
from zhcedge.app.device import Device
from zhcedge.app.frame_commands import error_facts
from zhcedge.app.last_good import LastGood
from zhcedge.app.loop_watcher import LoopWatcher
from zhcedge.config.diff import Change, Cost, changes, dearest
from zhcedge.config.schema import Config
from zhcedge.core.delivery import Alert
from zhcedge.core.errors import ConfigError, ZhcEdgeError
from zhcedge.core.lifecycle import Phase
from zhcedge.core.message_ids import MessageId, tagged
from zhcedge.pipeline.channel import ChannelState
from zhcedge.pipeline.segment import Segment

log = logging.getLogger(__name__)

_ALERT = "configuration"


@dataclass(frozen=True)
class ConfigSource:
    """Where the daemon's configuration comes from.

    Attributes:
        path: of the file.
        overrides: values of --set.
        environ: of the process.
    """

    path: Path
    overrides: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)

    def load(self) -> Config:
        """As it is written now, after the same checks as `zhc-edge check`. Blocks. Raises ConfigError with every
        problem."""
        report = check(self.path, self.overrides, self.environ)
        if report.problems:
            raise report.error()
        return load_configuration(self.path, self.overrides, self.environ).config


class Reconfigured(Protocol):
    """What the control loop offers. In its thread."""

    def reconfigure(self, config: Config, reopened: frozenset[str]) -> None:
        """Exchange in place, and open these cameras anew. The frame path is active."""
        ...

    def rebuild(self) -> None:
        """End in an orderly way, for another loop to begin."""
        ...


@dataclass
class _Trial:
    """What must come true for a configuration to stay.

    Attributes:
        former: what comes back otherwise.
        up: cameras that were up before; those that are still there must be up again.
    """

    former: Config
    up: frozenset[str]
    deadline_s: float | None = None


class Reloader(LoopWatcher):
    """Keeps the configuration that is in force. Implements LoopWatcher, over every loop of a run of the daemon.

    Belongs to the control loop's thread. Files are read, and everything is checked, in a thread of its own: events
    never wait for it.

    Args:
        source: None where there is nothing to load again, as in the demo.
        config: in force at first.
        wake: makes the loop take a turn soon; any thread.

    Attributes:
        config: in force.
        loop: the one that runs; None between two of them.
        fault: why what is in force is not what is written; for the device's state.
    """

    def __init__(self, source: ConfigSource | None, config: Config, last_good: LastGood, fault: str = "") -> None:
        self._source, self.config, self._last_good, self.fault = source, config, last_good, fault
        self.loop: Reconfigured | None = None
        self.wake: Callable[[], None] = _do_nothing
        self._number, self._state, self._text = 0, "none", ""
        self._changes: tuple[Change, ...] = ()
        self._error: ZhcEdgeError | None = None
        self._found: Config | ZhcEdgeError | None = None  # written by the checking thread, once
        self._thread: threading.Thread | None = None
        self._is_asked_again = False
        self._trial: _Trial | None = None
        self._is_kept = bool(fault)  # a configuration that was fallen back on is the last good one already
        self._now_s = 0.0
        self._is_between = False  # a loop ends, and the next one has not begun
        self._asked: list[Callable[[ZhcEdgeError | None], None]] = []
        self._alerts: list[Alert] = []  # for the device of the loop that runs next

    # -- what others ask ---------------------------------------------------------------------------------------
    def request(self, told: Callable[[ZhcEdgeError | None], None] | None = None) -> int:
        """Load again. The number of the reload, by which `facts` tells of it. Raises ConfigError without a source.

        Args:
            told: called once it has been checked, with what is wrong.
        """
        if self._source is None:
            raise ConfigError("this daemon was started without a configuration file")
        self._number += 1
        if told is not None:
            self._asked.append(told)
        if self._thread is not None or self._trial is not None:
            self._is_asked_again = True
        else:
            self._begin_check()
        return self._number

    @property
    def facts(self) -> dict[str, object]:
        """How the last reload went, for JSON: state is none, checking, trial, applied, unchanged, refused or
        reverted; the last four are final."""
        return {
            "number": self._number,
            "state": "checking" if self._is_asked_again else self._state,
            "text": self._text,
            "changes": [str(change) for change in self._changes],
            "error": None if self._error is None else error_facts(self._error),
        }

    # -- LoopWatcher -------------------------------------------------------------------------------------------
    def begin(self, device: Device, segment: Segment) -> None:
        """See LoopWatcher."""
        self._device, self._is_between = device, False
        device.on_reload = self.request

    def turn(self, now_s: float) -> None:
        """See LoopWatcher."""
        self._now_s = now_s
        while self._alerts:
            self._device.alert(self._alerts.pop(0))
        if self._found is not None and self._thread is not None:
            self._thread.join()
            found, self._found, self._thread = self._found, None, None
            self._take(found)
        if self._trial is not None:
            if not self._is_between:
                self._look_at(self._trial)
        elif not self._is_kept and self._device.facts.phase is Phase.ACTIVE:
            self._keep()
        if self._is_asked_again and self._thread is None and self._trial is None:
            self._is_asked_again = False
            self._begin_check()

    def stopping(self) -> None:
        """See LoopWatcher. Nothing is tried any more."""
        self._trial = None

    def loop_ended(self) -> None:
        """The loop is about to close."""
        self.loop, self.wake = None, _do_nothing

    # -- the transaction ---------------------------------------------------------------------------------------
    def _begin_check(self) -> None:
        self._state, self._text, self._changes, self._error = "checking", "", (), None
        self._thread = threading.Thread(target=self._check, name="reload", daemon=True)
        self._thread.start()

    def _check(self) -> None:
        try:
            self._found = self._source.load() if self._source is not None else ConfigError("there is no source")
        except ZhcEdgeError as error:
            self._found = error
        except Exception as error:  # a bug in a check must not end the thread without an answer
            log.exception("the configuration could not be checked")
            self._found = ConfigError(f"{type(error).__name__}: {error}", fix="report this as a bug")
        self.wake()

    def _take(self, found: Config | ZhcEdgeError) -> None:
        asked, self._asked = self._asked, []
        for told in asked:
            told(found if isinstance(found, ZhcEdgeError) else None)
        if isinstance(found, ZhcEdgeError):
            self._error = found
            self._settle("refused", f"the configuration has errors, and nothing was changed: {found}", logging.ERROR)
            return
        self._changes = changes(self.config, found)
        if not self._changes and not self.fault:
            self._settle("unchanged", "the configuration is as before", logging.INFO)
            return
        for change in self._changes:
            log.info("reload: %s", change)
        up = frozenset(name for name in self.config.channels if self._is_up(name))
        self._trial = _Trial(self.config, up)
        self._state = "trial"
        self._put_in_force(found)

    def _put_in_force(self, config: Config, fault: str = "") -> None:
        """Every way there and back."""
        found = changes(self.config, config)
        self.config, self.fault = config, fault
        if self.loop is None:  # the next one begins with it
            return
        if dearest(found) is Cost.RESTART or self._device.facts.phase is not Phase.ACTIVE:
            self._is_between = True
            self.loop.rebuild()
        else:
            self.loop.reconfigure(config, frozenset(one.channel for one in found if one.cost is Cost.CAMERA))

    def _is_up(self, camera: str) -> bool:
        return self._device.channel_state(camera)[0] is ChannelState.UP

    def _look_at(self, trial: _Trial) -> None:
        """Whether what is on trial has proved itself, or has had its time."""
        limit_s = self.config.control.reload_trial_s
        if trial.deadline_s is None:
            trial.deadline_s = self._now_s + limit_s
        wanted = [name for name in trial.up if name in self.config.channels and not self._is_up(name)]
        is_active = self._device.facts.phase is Phase.ACTIVE
        if (is_active and not wanted) or not limit_s:
            self._trial = None
            self._settle("applied", "the new configuration is in force", logging.INFO)
            self._keep()
        elif self._now_s > trial.deadline_s:
            what = f"not up again: {', '.join(sorted(wanted))}" if is_active else "the frame path is not active"
            self.revert(f"within {limit_s} s: {what}")

    def revert(self, reason: str) -> bool:
        """Go back to what was in force before the trial. False when nothing is on trial."""
        trial, self._trial = self._trial, None
        if trial is None:
            return False
        self._settle("reverted", f"the former configuration is in force again: {reason}", logging.ERROR)
        self._put_in_force(trial.former, f"the configuration was taken back: {reason}")
        return True

    def _settle(self, state: str, text: str, level: int) -> None:
        self._state, self._text = state, text
        log.log(level, "reload %d %s: %s", self._number, state, text, extra=tagged(MessageId.RELOAD, reload=state))
        if state in ("refused", "reverted"):
            self._alerts.append(Alert(_ALERT, text, "error"))
        elif state == "applied":
            self._alerts.append(Alert(_ALERT, text, "info", is_over=True))

    def _keep(self) -> None:
        self._is_kept = True
        self._last_good.keep(self.config)


def _do_nothing() -> None:
    """No loop runs yet."""
