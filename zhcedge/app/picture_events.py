"""What is wrong with a camera's picture, as events like those of objects."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from zhcedge.analytics.picture_health import HealthNews, HealthSettings, PictureHealth
from zhcedge.config.channel import PictureHealthConfig
from zhcedge.config.schema import Config
from zhcedge.core.events import EndReason, Event, EventKind, EventSnapshot, EventType
from zhcedge.core.picture import COLUMNS, ROWS, PictureFigures
from zhcedge.core.types import FrameInfo


class PictureEvents:
    """Of every camera that is watched. Belongs to the control loop's thread.

    Args:
        tell: takes events, in order.
    """

    def __init__(self, config: Config, tell: Callable[[Sequence[Event]], None]) -> None:
        self._tell = tell
        self._cameras: dict[str, PictureHealth] = {}
        self._open: dict[str, EventSnapshot] = {}  # by camera
        self._sizes: dict[str, tuple[int, int]] = {}
        self._ids: Iterator[int] = itertools.count(1)
        self.reconfigure(config)

    def reconfigure(self, config: Config) -> None:
        """Cameras that are watched go on with other thresholds; those that are no more end."""
        wanted = {name: one.picture_health for name, one in config.channels.items() if one.picture_health.enabled}
        for name in [name for name in self._cameras if name not in wanted]:
            self.end(name, EndReason.RELOAD)
            del self._cameras[name]
        for name, settings in wanted.items():
            if name in self._cameras:
                self._cameras[name].replace(_settings(settings))
            else:
                self._cameras[name] = PictureHealth(_settings(settings))

    def fault(self, camera: str) -> str:
        """What is wrong with its picture; empty for nothing."""
        health = self._cameras.get(camera)
        return str(health.fault) if health is not None and health.fault is not None else ""

    def take(self, camera: str, facts: Mapping[str, object]) -> bool:
        """Figures as `as_facts` makes them; True when they made events."""
        health = self._cameras.get(camera)
        if health is None:
            return False
        figures, self._sizes[camera] = _figures(facts)
        news = health.step(figures)
        for one in news:
            self._tell([self._event(camera, one, EndReason.LOST)])
        return bool(news)

    def end(self, camera: str, reason: EndReason) -> None:
        """Its channel is away, or the daemon ends."""
        health = self._cameras.get(camera)
        news = health.close() if health is not None else None
        if news is not None:
            self._tell([self._event(camera, news, reason)])

    def end_all(self, reason: EndReason) -> None:
        """As `end`, of every camera."""
        for camera in self._cameras:
            self.end(camera, reason)

    def _event(self, camera: str, news: HealthNews, reason: EndReason) -> Event:
        if news.is_over:
            before = self._open.pop(camera)
            after = _ended(before, news)
            return Event(EventType.END, before, after, reason)
        width_px, height_px = self._sizes[camera]
        snapshot = self._open[camera] = EventSnapshot(
            id=f"{camera}-picture-{next(self._ids)}",
            camera=camera,
            label=news.fault.value,
            score=1.0,
            top_score=1.0,
            box=(0.0, 0.0, float(width_px), float(height_px)),
            frame=news.now,
            start_time_ns=news.first.capture_time_ns,
            kind=EventKind.PICTURE,
        )
        return Event(EventType.NEW, None, snapshot)


def _ended(before: EventSnapshot, news: HealthNews) -> EventSnapshot:
    end_ns = max(news.first.capture_time_ns, before.start_time_ns)
    return replace(before, frame=news.now, end_time_ns=end_ns)


def _settings(config: PictureHealthConfig) -> HealthSettings:
    return HealthSettings(
        hold_s=config.hold_s,
        dark_level=config.dark_level,
        min_detail=config.min_detail,
        min_likeness=config.min_likeness,
        relearn_s=config.relearn_s,
    )


def as_facts(figures: PictureFigures, width_px: int, height_px: int) -> dict[str, object]:
    """Figures as they travel over the control pipe."""
    info = figures.info
    return {
        "sequence": info.sequence,
        "capture_time_ns": info.capture_time_ns,
        "read_time_ns": info.read_time_ns,
        "media_time_s": info.media_time_s,
        "clock_synced": info.clock_synced,
        "size_px": [width_px, height_px],
        "luma": figures.luma.ravel().tolist(),
        "detail": figures.detail.ravel().tolist(),
    }


def _figures(facts: Mapping[str, object]) -> tuple[PictureFigures, tuple[int, int]]:
    """The reverse of `as_facts`; the channel's number is not known here."""
    info = FrameInfo(
        channel=0,
        sequence=int(str(facts["sequence"])),
        capture_time_ns=int(str(facts["capture_time_ns"])),
        read_time_ns=int(str(facts["read_time_ns"])),
        media_time_s=float(str(facts["media_time_s"])),
        clock_synced=bool(facts["clock_synced"]),
    )
    luma, detail = (np.array(facts[name], np.int32).reshape(ROWS, COLUMNS) for name in ("luma", "detail"))
    size = facts["size_px"]
    width_px, height_px = size if isinstance(size, list) else (0, 0)
    return PictureFigures(info, luma, detail), (int(width_px), int(height_px))
