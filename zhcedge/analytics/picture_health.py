"""Whether a camera still sees what it should: covered, turned away, dark, out of focus, or showing a standing picture.

Everything is told from figures of the picture on a coarse grid (core/picture.py): brightness and detail of each cell.
They are compared with a reference, which follows the picture slowly while it is well, so that day turns into night
without a word. How alike two pictures are is the correlation coefficient of their cells' brightness: it is the same for
any brightness and contrast. The thresholds were chosen on the bundled clip and on planted faults (tests).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zhcedge.core.picture import SAMPLES, PictureFigures
from zhcedge.core.types import FrameInfo

_LEARN_S = 300.0  # time constant of the reference
_FIRST_FIGURES = 5  # that make the first reference
_DETAIL_FLOOR = 0.3  # of 255: below it there is nothing to compare with
_CONTRAST_FLOOR = 2.0  # likewise, of the spread of the cells' brightness

Grid = npt.NDArray[np.float64]


class Fault(str, enum.Enum):
    """What is wrong with a picture; the value is the label of its event. The first that is true is told."""

    DARK = "dark"
    COVERED = "covered"  # nearly all detail is gone, and so is what was seen
    BLURRED = "blurred"  # the same view with much less detail
    MOVED = "moved"  # another view
    FROZEN = "frozen"  # frames come, and all are the same: last, because a covered camera's are, too

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class HealthSettings:
    """When a picture is no good.

    Attributes:
        hold_s: how long a fault must last to be told, and be gone to be over.
        dark_level: mean brightness, 0..255, below which it is dark.
        min_detail: share of the usual detail that a sharp picture has, 0..1.
        min_likeness: correlation with the usual view from which on it is the same view, 0..1.
        relearn_s: how long another view must last to become the usual one.
    """

    hold_s: float = 5.0
    dark_level: float = 16.0
    min_detail: float = 0.4
    min_likeness: float = 0.5
    relearn_s: float = 120.0


@dataclass(frozen=True)
class HealthNews:
    """A fault has begun, or is over.

    Attributes:
        first: the frame from which it was seen, at its beginning; from which it was gone, at its end.
        now: the frame that decided it.
    """

    fault: Fault
    is_over: bool
    first: FrameInfo
    now: FrameInfo


class PictureHealth:
    """Of one camera. Figures come in order, about one a second; time is that of the frames' reading."""

    def __init__(self, settings: HealthSettings) -> None:
        self._settings = settings
        self._count = 0
        self._luma: Grid | None = None
        self._detail = 0.0
        self._last: PictureFigures | None = None
        self._told: Fault | None = None  # the fault that goes on
        self._seen: Fault | None = None  # what the last figures show, and since when
        self._since: FrameInfo | None = None
        self._ill_since: FrameInfo | None = None  # since when they show any fault; None while they show none
        self._learnt_ns = 0

    @property
    def fault(self) -> Fault | None:
        """The one that has been told and goes on."""
        return self._told

    def replace(self, settings: HealthSettings) -> None:
        """Other thresholds from the next figures on."""
        self._settings = settings

    def step(self, figures: PictureFigures) -> list[HealthNews]:
        """What the figures decide: at most an end and a beginning."""
        luma, detail = figures.luma / SAMPLES, float(figures.detail.mean()) / SAMPLES
        seen = self._judge(figures, luma, detail)
        self._last = figures
        if seen is not self._seen or self._since is None:
            self._seen, self._since = seen, figures.info
        self._ill_since = None if seen is None else self._ill_since or figures.info
        # Near a threshold one fault may look like another by turns: then the first to be told is the one seen now.
        since = self._ill_since if self._told is None and self._ill_since is not None else self._since
        lasts_s = (figures.info.read_time_ns - since.read_time_ns) / 1e9
        if seen is Fault.MOVED and lasts_s >= self._settings.relearn_s:
            self._luma, self._detail = luma, detail
        if seen is None and self._told is None:
            self._learn(luma, detail, figures.info)
        if seen is self._told or lasts_s < self._settings.hold_s:
            return []
        news = [] if self._told is None else [HealthNews(self._told, True, since, figures.info)]
        if seen is not None:
            news.append(HealthNews(seen, False, since, figures.info))
        self._told = seen
        return news

    def close(self) -> HealthNews | None:
        """Nobody knows any more: the end of what goes on, if anything does. What the camera usually sees is kept."""
        told, last = self._told, self._last
        self._told = self._seen = self._since = self._ill_since = self._last = None
        return HealthNews(told, True, last.info, last.info) if told is not None and last is not None else None

    def _judge(self, figures: PictureFigures, luma: Grid, detail: float) -> Fault | None:
        settings, last = self._settings, self._last
        if luma.mean() < settings.dark_level:
            return Fault.DARK
        if self._luma is not None and self._count >= _FIRST_FIGURES:
            likeness = _likeness(luma, self._luma)
            is_dull = self._detail > _DETAIL_FLOOR and detail < settings.min_detail * self._detail
            if is_dull:
                return Fault.BLURRED if likeness >= settings.min_likeness else Fault.COVERED
            if likeness < settings.min_likeness:
                return Fault.MOVED
        is_frozen = last is not None and last.info.sequence != figures.info.sequence and _is_same(last, figures)
        return Fault.FROZEN if is_frozen else None

    def _learn(self, luma: Grid, detail: float, info: FrameInfo) -> None:
        elapsed_s = max(0.0, (info.read_time_ns - self._learnt_ns) / 1e9)
        self._learnt_ns = info.read_time_ns
        if self._luma is None:
            self._luma, self._detail = luma, detail
        self._count += 1
        weight = 1 / self._count if self._count <= _FIRST_FIGURES else 1 - np.exp(-elapsed_s / _LEARN_S)
        self._luma = self._luma + weight * (luma - self._luma)
        self._detail += float(weight) * (detail - self._detail)


def _is_same(one: PictureFigures, other: PictureFigures) -> bool:
    return bool((one.luma == other.luma).all() and (one.detail == other.detail).all())


def _likeness(one: Grid, other: Grid) -> float:
    """Correlation coefficient of two grids, -1..1; 0 where one of them is even all over and the other is not."""
    spreads = float(one.std()), float(other.std())
    if max(spreads) < _CONTRAST_FLOOR:
        return 1.0
    if min(spreads) < _CONTRAST_FLOOR / 4:
        return 0.0
    return float(((one - one.mean()) * (other - other.mean())).mean()) / (spreads[0] * spreads[1])
