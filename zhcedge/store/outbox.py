"""Which outbox a daemon gets."""

from __future__ import annotations

from zhcedge.core.delivery import OnAlert, Outbox
from zhcedge.core.ports import Clock
from zhcedge.store.durable import DurableOutbox
from zhcedge.store.memory import MemoryOutbox
from zhcedge.store.settings import OutboxSettings


def open_outbox(settings: OutboxSettings, clock: Clock, on_alert: OnAlert) -> Outbox:
    """A durable outbox where there is a folder for it, else one in memory. Raises StoreError as DurableOutbox does."""
    if settings.dir is None and settings.memory_dir is None:
        return MemoryOutbox(settings.limits, clock, on_alert)
    return DurableOutbox(settings, clock, on_alert)
