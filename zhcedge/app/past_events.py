"""Use case `events`: what the history holds."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zhcedge.app.check import load_configuration
from zhcedge.app.given_folders import state_folder
from zhcedge.app.history_settings import history_folder
from zhcedge.app.moments import moment_ns
from zhcedge.app.storage_settings import FOLDER_NAME, storage_settings
from zhcedge.config.values import SLUG_WORDS, is_slug
from zhcedge.core.errors import SourceMissingError, UsageError
from zhcedge.service.clock import SystemClock
from zhcedge.store.clips import INDEX_NAME, MediaIndex, Use
from zhcedge.store.history_batch import PastEvent, Tally, TotalKey
from zhcedge.store.history_reading import Wanted, read_events, read_totals


@dataclass(frozen=True)
class EventsQuery:
    """What is asked for, as written.

    Attributes:
        config: configuration of the daemon that wrote the history; None looks where systemd lets it write.
        overrides, environ: as for every command.
        since, until: see moments.moment_ns; empty for no limit.
        camera, label: None for all.
        limit: the newest so many; 0 for all.
    """

    config: Path | None = None
    overrides: Sequence[str] = ()
    environ: Mapping[str, str] | None = None
    since: str = ""
    until: str = ""
    camera: str | None = None
    label: str | None = None
    limit: int = 0


def past_events(query: EventsQuery) -> list[PastEvent]:
    """In order of their end. Raises UsageError, ConfigError, and what `read_events` raises."""
    return read_events(_folder(query), _wanted(query))


def clips_of(query: EventsQuery, events: Sequence[PastEvent]) -> list[list[Use]]:
    """For each event the files of its clip that are there, in order, and the range of each that is its own.

    Raises ConfigError, and StoreError where the index can't be read.
    """
    environ = query.environ or {}
    storage = None
    if query.config is not None:
        storage = storage_settings(load_configuration(query.config, query.overrides, environ).config, environ)
    state = state_folder(environ)
    folder = storage.dir if storage is not None else state / FOLDER_NAME if state is not None else None
    if folder is None or not (folder / INDEX_NAME).is_file():
        return [[] for _ in events]
    with contextlib.closing(MediaIndex(folder)) as index:
        return [[use for _, use in index.clip_of(f"{event.boot_id}/{event.id}")] for event in events]


def past_totals(query: EventsQuery) -> list[tuple[TotalKey, Tally]]:
    """In order of their hour. Raises UsageError, ConfigError, and what `read_totals` raises."""
    return read_totals(_folder(query), _wanted(query))


def check_camera(name: str | None) -> None:
    """Raises UsageError for what no camera is ever called, such as the nothing of a variable that was not set."""
    if name is not None and not is_slug(name):
        raise UsageError(f"no camera is called {name!r}", where="--camera", fix=f"a name is {SLUG_WORDS}")


def _check_label(label: str | None) -> None:
    if label is not None and not (label and label.isprintable()):
        raise UsageError(f"no label is {label!r}", where="--label", fix="write one such as person")


def _wanted(query: EventsQuery) -> Wanted:
    check_camera(query.camera)
    _check_label(query.label)
    now_ns = SystemClock().wall_ns()
    since_ns = moment_ns(query.since, now_ns, "--since") if query.since else None
    until_ns = moment_ns(query.until, now_ns, "--until") if query.until else None
    if since_ns is not None and until_ns is not None and until_ns <= since_ns:
        raise UsageError(f"ends at {query.until}, before it begins at {query.since}", where="--until")
    return Wanted(since_ns, until_ns, query.camera, query.label, query.limit)


def _folder(query: EventsQuery) -> Path:
    """Raises ConfigError, and SourceMissingError where nothing says which folder it is."""
    environ, folder = query.environ or {}, None
    if query.config is not None:
        folder = history_folder(load_configuration(query.config, query.overrides, environ).config, environ)
    folder = folder or state_folder(environ)
    if folder is None:
        raise SourceMissingError(
            "nothing says in which folder the history is",
            fix="give the daemon's configuration with -c, and set outbox.dir in it: without it no history is kept",
        )
    return folder
