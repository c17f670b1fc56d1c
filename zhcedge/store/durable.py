"""An outbox that outlasts the process in memory (tmpfs), and a power cut on flash."""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager
from dataclasses import replace

from zhcedge.core.delivery import Message, OnAlert, OpenEvent, Row
from zhcedge.core.errors import StoreError
from zhcedge.core.ports import Clock
from zhcedge.store.alerts import Alerts, Drops
from zhcedge.store.database import Meta
from zhcedge.store.drafts import Draft, Drafter
from zhcedge.store.events import OpenEntry
from zhcedge.store.flash_side import ID_BLOCK, FlashSide
from zhcedge.store.hot import HotStore
from zhcedge.store.refused import Refusal
from zhcedge.store.rows import Held
from zhcedge.store.settings import OutboxSettings
from zhcedge.store.waiting import Waiting

_CLOSE_S = 3.0


class DurableOutbox:
    """Implements core.delivery.Outbox over one or two SQLite files. Belongs to the control loop's thread.

    `memory_dir` has every row and every open event when `append` returns, written and not synced: they survive a
    killed process. `dir` gets what the broker has not taken within a second, in batches, synced, by a thread of its
    own; such rows leave the memory. Rows in `memory_dir` are in this process's memory as well, so they are never
    read back.

    **What a power cut can lose.** A row is on flash at most 1 s (its age) + 0.5 s (the tick) + 1 s (at most one sync a
    second, four in a burst; a checkpoint of the log, every 4 MB, counts three) + the time of one sync after it was
    appended, so about 2.5 s of rows that the broker has not taken; more where the disk is slow, full, or has had its
    bytes of the day. Rows that were acknowledged, or events that ended, in that time may come back: a row is sent a
    second time, an event gets a second `end`. An open event's state is up to 10 s old there.

    **What flash has to bear.** A commit of one row writes about 9 KB, of 32 rows 40 KB, and each page once more at the
    checkpoint at most: with a sync a second, 0.9 GB a day for a row a second, 4.1 GB for ten, 8.5 GB for forty rows of
    900 bytes (tools/bench/outbox). The bytes have a budget of their own (budget.py: 10 GB in the first day, 5 GB in any
    other), beyond which rows wait in memory.

    Ids are reserved ahead on flash, so none comes twice after a power cut; numbering then goes on behind the reserved
    ones. A damaged file is renamed and a new outbox_id begun. A damaged file that is found later keeps the id, because
    the numbering is known.

    Raises:
        StoreError: a folder is missing or read-only, its file is another process's, or of a newer version.
        ValueError: without a folder; that is what MemoryOutbox is for.
    """

    def __init__(self, settings: OutboxSettings, clock: Clock, on_alert: OnAlert) -> None:
        if settings.dir is None and settings.memory_dir is None:
            raise ValueError("a durable outbox needs a folder")
        self._settings, self._clock = settings, clock
        self._alerts = Alerts(on_alert)
        self._drops = Drops(self._alerts)
        self._waiting = Waiting()
        self._entries: dict[str, OpenEntry] = {}
        self._refused = 0
        self._is_closed = False
        self._flash: FlashSide | None = None
        self._hot: HotStore | None = None
        self._open(settings)

    # -- opening -----------------------------------------------------------------------------------------------
    def _open(self, settings: OutboxSettings) -> None:
        clock, max_age_s = self._clock, settings.limits.max_age_s
        if settings.dir is not None:
            self._flash = FlashSide(
                settings.dir, clock, self._waiting, self._entries, max_age_s, self._alerts, self._drops
            )
        if settings.memory_dir is not None:
            try:
                self._hot = HotStore(settings.memory_dir, self._alerts, clock.monotonic_ns())
            except StoreError:
                if self._flash is not None:
                    self._flash.abandon()
                raise
        flash = self._flash.contents if self._flash is not None else None
        hot = self._hot.contents if self._hot is not None else None
        hot_meta = hot.meta if hot is not None else Meta()
        flash_meta = flash.meta if flash is not None else Meta()
        was_damaged = any(part is not None and part.was_damaged for part in (self._flash, self._hot))
        known_id = flash_meta.outbox_id or hot_meta.outbox_id
        self._outbox_id = uuid.uuid4().hex if was_damaged or not known_id else known_id
        next_id = max(hot_meta.reserved, flash_meta.reserved, flash_meta.flushed) + 1

        is_pair = not flash_meta.outbox_id or hot_meta.outbox_id == flash_meta.outbox_id
        if flash is not None and not (is_pair and hot_meta.outbox_id):
            self._entries.update((entry.event.id, entry) for entry in flash.entries)
        for entry in hot.events if hot is not None else ():
            if not is_pair:
                entry = replace(entry, begun=next_id)
                next_id += 1
            self._entries.setdefault(entry.event.id, entry)
        if self._flash is not None and not self._flash.start(self._outbox_id, next_id):
            # Nothing could be reserved: under another name, ids that come twice are no harm.
            self._outbox_id = self._flash.rename(uuid.uuid4().hex)
        for held in hot.rows if hot is not None else ():
            if not is_pair:  # another store's ids would mix with ours; its messages have their own numbers in them
                self._waiting.add(replace(held, row=replace(held.row, id=next_id)))
                next_id += 1
            elif held.row.id > flash_meta.flushed:
                self._waiting.add(held)
        damaged = hot.damaged if hot is not None else []
        self._drops.note(False, sum(row_id > flash_meta.flushed for row_id in damaged))
        self._drafter = Drafter(clock, next_id, self._keep)
        if self._hot is not None:
            is_written = self._hot.begin(self._hot_meta(), self._waiting.by_id, self._entries)
            if not is_written and self._flash is None:
                self._outbox_id = uuid.uuid4().hex
                self._hot.write_meta(self._hot_meta())
        if self._flash is not None:
            self._flash.events.compare(clock.monotonic_ns())

    def _hot_meta(self) -> Meta:
        """What memory_dir should say: the same as the flash, or for itself where there is none."""
        if self._flash is not None:
            return self._flash.meta
        return Meta(self._outbox_id, self._drafter.next_id - 1 + ID_BLOCK)

    # -- core.delivery.Outbox ----------------------------------------------------------------------------------
    @property
    def outbox_id(self) -> str:
        return self._outbox_id

    @property
    def is_durable(self) -> bool:
        return True

    @property
    def next_id(self) -> int:
        return self._drafter.next_id

    def batch(self) -> AbstractContextManager[None]:
        return self._drafter.batch()

    def append(
        self, message: Message, is_expendable: bool = False, *, opens: OpenEvent | None = None, closes: str = ""
    ) -> int:
        return self._drafter.append(message, is_expendable, opens, closes)

    def open_events(self) -> list[OpenEvent]:
        return [entry.event for entry in self._entries.values()]

    def pending(self, after_id: int, limit: int) -> list[Row]:
        """As the port says, but rows that are on flash are read ahead by a thread: a call may find fewer than there
        are, or none, and a later one has more."""
        if self._flash is None:
            return self._waiting.after(after_id, limit)
        self._take_flushed(self._flash.collect())
        found, is_all = self._flash.after(after_id, limit)
        return found + self._waiting.after(after_id, limit - len(found)) if is_all else found

    def ack(self, row_id: int) -> None:
        self._forget(row_id)

    def refuse(self, row_id: int, reason: str) -> None:
        """Set the row aside in the table `refused`, on flash or else in `memory_dir`: at most 1,000, the newest."""
        held = self._waiting.by_id.get(row_id)
        if held is not None and self._hot is not None and self._flash is None:
            self._hot.refuse(Refusal(row_id, held.row, reason, self._clock.wall_ns()))
        elif self._flash is not None and (held is not None or row_id in self._flash):
            self._flash.refuse(row_id, held.row if held else None, reason)
        self._refused += self._forget(row_id) is not None

    def tick(self) -> None:
        now_ns, hot, flash = self._clock.monotonic_ns(), self._hot, self._flash
        for row_id in self._waiting.expired(lambda held: self._is_expired(held, now_ns)):
            self._drop(row_id)
        self._trim()
        if flash is not None:
            self._take_flushed(flash.tick(self.next_id))
        if hot is not None:
            is_low = hot.meta.reserved < self.next_id + ID_BLOCK // 2
            if flash.meta != hot.meta if flash is not None else is_low:
                hot.write_meta(self._hot_meta())
            hot.tick(self._waiting.by_id, self._entries, now_ns)
        self._drops.tick(now_ns)
        self._alerts.deliver()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        flushed = self._flash.close(self.next_id, _CLOSE_S) if self._flash is not None else 0
        if self._hot is not None:
            self._take_flushed(max(0, flushed))
            if flushed >= 0:
                self._hot.write_meta(replace(self._hot_meta(), reserved=self.next_id - 1))
            self._hot.close()
        self._drops.tick(self._clock.monotonic_ns())
        self._alerts.deliver()

    @property
    def depth(self) -> int:
        return len(self._waiting) + (len(self._flash) if self._flash is not None else 0)

    @property
    def dropped(self) -> int:
        return self._drops.dropped

    @property
    def lost(self) -> int:
        return self._drops.lost

    @property
    def refused(self) -> int:
        return self._refused

    # -- for benchmarks and statistics -------------------------------------------------------------------------
    @property
    def flash_syncs(self) -> int:
        """How often the flash was made to sync by this object."""
        return self._flash.syncs if self._flash is not None else 0

    @property
    def flash_bytes(self) -> int:
        """Bytes written to flash by this object, at most; the file system's own come on top."""
        return self._flash.bytes_written if self._flash is not None else 0

    @property
    def rows_in_memory(self) -> int:
        """Rows that are not on flash."""
        return len(self._waiting)

    @property
    def is_writing(self) -> bool:
        """Whether a batch is on its way to flash, as far as `tick` and `pending` have seen."""
        return self._flash is not None and self._flash.is_writing

    # -- inside ------------------------------------------------------------------------------------------------
    def _keep(self, draft: Draft) -> None:
        for held in draft.rows:
            self._waiting.add(held)
        changed: list[OpenEntry] = []
        ended: list[OpenEntry] = []
        for event_id, (row_id, event) in draft.events.items():
            known = self._entries.get(event_id)
            if event is not None:
                self._entries[event_id] = entry = OpenEntry(event, known.begun if known else row_id)
                changed.append(entry)
            elif known is not None:
                del self._entries[event_id]
                ended.append(known)
            if self._flash is not None:
                self._flash.events.note(event_id, draft.rows[-1].at_ns)
        if self._hot is not None:
            self._hot.keep(draft.rows, changed, ended)
        self._trim()

    def _trim(self) -> None:
        limits = self._settings.limits
        while True:
            flash = self._flash
            depth, size = self.depth, self._waiting.bytes + (flash.bytes if flash is not None else 0)
            is_memory_full = flash is not None and self._waiting.bytes > self._settings.max_memory_bytes
            if depth > limits.max_messages or (size > limits.max_bytes and depth > 1):
                self._drop(self._victim(flash))
            elif is_memory_full and len(self._waiting) > 1:
                self._drop(self._victim(None))
            else:
                return

    def _victim(self, flash: FlashSide | None) -> int:
        """The oldest expendable row, else the oldest one. What is on flash is older than what is in memory."""
        oldest = self._waiting.oldest
        return (
            (flash.oldest_expendable if flash is not None else 0)
            or self._waiting.oldest_expendable
            or (flash.oldest if flash is not None else 0)
            or (oldest.row.id if oldest is not None else 0)
        )

    def _drop(self, row_id: int) -> None:
        is_expendable = self._forget(row_id)
        if is_expendable is not None:
            self._drops.note(is_expendable)

    def _forget(self, row_id: int) -> bool | None:
        """Whether the row was expendable; None for one that is not here."""
        held = self._waiting.remove(row_id)
        if held is not None:
            if self._hot is not None:
                self._hot.forget(row_id)
            return held.is_expendable
        return self._flash.forget(row_id) if self._flash is not None else None

    def _take_flushed(self, row_id: int) -> None:
        if row_id and self._hot is not None:
            self._hot.forget_upto(row_id)

    def _is_expired(self, held: Held, now_ns: int) -> bool:
        """By the wall clock only where it was set both times: a board without a battery starts in the past."""
        max_age_ns = self._settings.limits.max_age_s * 1e9
        if held.is_dated and self._clock.is_synced():
            return self._clock.wall_ns() - held.row.created_ns > max_age_ns
        return now_ns - held.at_ns > max_age_ns
