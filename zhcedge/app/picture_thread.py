"""The thread that writes pictures of events, so that the control loop never waits for a disk."""

from __future__ import annotations

import base64
import binascii
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from zhcedge.core.delivery import Alert, OnAlert
from zhcedge.core.errors import StoreError
from zhcedge.store.pictures import Pictured, PictureStore

QUEUE_LIMIT = 16
"""Pictures that wait to be written; what comes beyond them is dropped."""

_STOP_S = 10.0


@dataclass(frozen=True)
class Kept:
    """What has become of a picture.

    Attributes:
        is_kept: it is on the disk.
        jpeg: the event's best one, where it was asked for; empty else.
    """

    of: Pictured
    is_kept: bool
    jpeg: bytes = b""


@dataclass(frozen=True)
class _Job:
    """Keep what is there in base64, or show the whole picture that was kept."""

    of: Pictured
    whole: str = ""
    crop: str = ""
    is_show: bool = False


class PictureThread:
    """Any thread calls; what comes back waits in `news`.

    Args:
        wake: called when there are news.
        on_alert: told when pictures can't be written, and when they can again.

    Attributes:
        written: pictures that were kept.
        lost: pictures that could not be.
    """

    def __init__(self, store: PictureStore, on_alert: OnAlert, wake: Callable[[], None]) -> None:
        self._store, self._on_alert, self._wake = store, on_alert, wake
        self._jobs: queue.Queue[_Job | None] = queue.Queue(QUEUE_LIMIT)
        self._news: deque[Kept] = deque()
        self._thread = threading.Thread(target=self._run, name="pictures", daemon=True)
        self._is_failing = False
        self.written = self.lost = 0

    def start(self) -> None:
        self._thread.start()

    def keep(self, of: Pictured, whole: str, crop: str) -> bool:
        """Write an event's picture, base64, in place of an earlier one. False when too many wait."""
        return self._put(_Job(of, whole, crop))

    def show(self, of: Pictured) -> bool:
        """Give back the event's whole picture with the news, if it is still there. False when too many wait."""
        return self._put(_Job(of, is_show=True))

    def news(self) -> list[Kept]:
        """What has come of it since the last call."""
        found = []
        while self._news:
            found.append(self._news.popleft())
        return found

    def close(self) -> None:
        """Do what waits, some seconds long at most. Twice is fine."""
        if self._thread.is_alive():
            with suppress(queue.Full):  # the disk hangs: what waits is lost
                self._jobs.put(None, timeout=_STOP_S)
            self._thread.join(_STOP_S)

    def _put(self, job: _Job) -> bool:
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            return False
        return True

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.is_show:
                self._show(job.of)
            else:
                self._tell(Kept(job.of, self._keep(job)))
        self._store.close()

    def _keep(self, job: _Job) -> bool:
        try:
            whole, crop = (base64.b64decode(text, validate=True) for text in (job.whole, job.crop))
            self._store.keep(job.of, whole, crop)
        except binascii.Error:
            self.lost += 1
            return False
        except StoreError as error:
            self.lost += 1
            if not self._is_failing:
                self._is_failing = True
                self._on_alert(Alert("snapshots-lost", f"pictures of events are lost: {error}", "error"))
            return False
        self.written += 1
        if self._is_failing:
            self._is_failing = False
            self._on_alert(Alert("snapshots-lost", "pictures of events are kept again", "info", is_over=True))
        return True

    def _show(self, of: Pictured) -> None:
        try:
            jpeg = self._store.whole(of)
        except StoreError:  # the folder is out of order: whoever writes there has told
            return
        if jpeg:  # else it has been purged
            self._tell(Kept(of, is_kept=True, jpeg=jpeg))

    def _tell(self, news: Kept) -> None:
        self._news.append(news)
        self._wake()
