"""`zhc-edge purge`: deletes what cameras have left on this device, also while the daemon runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from zhcedge.app.history_settings import history_folder
from zhcedge.app.past_events import check_camera
from zhcedge.app.storage_settings import storage_settings
from zhcedge.config.schema import Config
from zhcedge.core.errors import UsageError, ZhcEdgeError
from zhcedge.store.clips import MediaIndex
from zhcedge.store.history_reading import PurgeableHistory
from zhcedge.store.purging import Amount, Purgeable, PurgeableMedia, Selection


@dataclass(frozen=True)
class Purged:
    """What was deleted of one kind, or was to be."""

    things: str
    amount: Amount


def selection_of(camera: str | None, before_ns: int | None, is_all: bool) -> Selection:
    """What the words of the command line mean. Raises UsageError where they say nothing, or contradict themselves."""
    check_camera(camera)
    if is_all != (camera is None and before_ns is None):
        raise UsageError("say what is to be deleted", fix="give --camera, --before or both, or else --all")
    return Selection(camera, before_ns)


def purge(config: Config, selection: Selection, confirm: Callable[[list[Purged]], bool]) -> list[Purged] | None:
    """Delete what the selection covers, from everything that remembers cameras.

    Args:
        confirm: told what is there; False leaves it all.

    Returns None when it was not confirmed. Raises StoreError when something could not be deleted; all else is gone.
    """
    with contextlib.ExitStack() as stack:
        stores = list(_stores(config, stack))
        if not stores:
            raise UsageError(
                "there is no folder of clips and snapshots", where="storage.dir", fix="name it in the configuration"
            )
        if not confirm(_found(stores, selection)):
            return None
        done: list[Purged] = []
        fault: ZhcEdgeError | None = None
        for store in stores:
            try:
                done.append(Purged(store.things, store.purge(selection)))
            except ZhcEdgeError as error:
                fault = fault or error
        if fault is not None:
            raise fault
        return done


def _found(stores: Sequence[Purgeable], selection: Selection) -> list[Purged]:
    found = []
    for store in stores:
        with contextlib.suppress(ZhcEdgeError):  # said when it is to be deleted; the others are purged all the same
            found.append(Purged(store.things, store.measure(selection)))
    return found


def _stores(config: Config, stack: contextlib.ExitStack) -> Iterator[Purgeable]:
    """Everything that remembers cameras. A new store joins here."""
    storage = storage_settings(config)
    if storage is not None and storage.dir.is_dir():
        yield PurgeableMedia(storage.dir, stack.enter_context(contextlib.closing(MediaIndex(storage.dir))))
    history = history_folder(config)
    if history is not None and history.is_dir():
        yield PurgeableHistory(history)
