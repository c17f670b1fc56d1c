"""Which open events the flash should hear of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from zhcedge.store.events import OpenEntry

_REFRESH_NS = 10 * 1_000_000_000
"""How old the flash's state of an open event may be: an `update` a second would wear it out."""


class FlashEvents:
    """Compares the open events with what is on flash. One thread; times are monotonic.

    Args:
        entries: the open events, by id; looked at, never changed.
        stored: those that are on flash.
    """

    def __init__(self, entries: Mapping[str, OpenEntry], stored: Iterable[OpenEntry], now_ns: int) -> None:
        self._entries = entries
        self._dirty: dict[str, int] = {}  # event -> time of the first change that is not on flash
        self._stored = {entry.event.id: (entry, now_ns) for entry in stored}  # as written, and when

    def note(self, event_id: str, at_ns: int) -> None:
        """An event has changed, or is no more open."""
        self._dirty.setdefault(event_id, at_ns)

    def compare(self, now_ns: int) -> None:
        """Note all that may differ."""
        for event_id in {*self._entries, *self._stored}:
            self.note(event_id, now_ns)

    def is_due(self, due_ns: int, now_ns: int) -> bool:
        """Whether something that changed before `due_ns` wants to be written."""
        return any(at_ns <= due_ns and self._wants(event_id, now_ns) for event_id, at_ns in self._dirty.items())

    def changes(self, now_ns: int) -> tuple[list[OpenEntry], list[OpenEntry]]:
        """What to write and what to delete; `wrote` says that it was done."""
        for event_id in [event_id for event_id in self._dirty if event_id not in self._entries]:
            if event_id not in self._stored:
                del self._dirty[event_id]  # it began and ended between two writes
        wanted = [event_id for event_id in self._dirty if self._wants(event_id, now_ns)]
        entries = [self._entries[event_id] for event_id in wanted if event_id in self._entries]
        # Also one that has ended and begun again, which is another row.
        outdated = [self._stored[event_id][0] for event_id in wanted if event_id in self._stored]
        begun = {entry.begun for entry in entries}
        return entries, [entry for entry in outdated if entry.begun not in begun]

    def wrote(self, entries: Iterable[OpenEntry], closed: Iterable[OpenEntry], now_ns: int) -> None:
        for entry in closed:
            self._stored.pop(entry.event.id, None)
            if entry.event.id not in self._entries:
                self._dirty.pop(entry.event.id, None)
        for entry in entries:
            event_id = entry.event.id
            self._stored[event_id] = entry, now_ns
            if self._entries.get(event_id) is entry:
                self._dirty.pop(event_id, None)
            else:
                self._dirty[event_id] = now_ns  # it has changed meanwhile

    def lost(self) -> None:
        """Nothing is on flash any more: its file was damaged."""
        self._stored.clear()
        for event_id in self._entries:
            self._dirty.setdefault(event_id, 0)

    def _wants(self, event_id: str, now_ns: int) -> bool:
        """Whether a changed event is worth a write: what is there already may be a little out of date."""
        entry = self._entries.get(event_id)
        if event_id not in self._stored:
            return entry is not None
        stored, at_ns = self._stored[event_id]
        return entry is None or entry.begun != stored.begun or now_ns - at_ns >= _REFRESH_NS
