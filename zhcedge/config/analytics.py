"""The configuration of what is said about objects: tracker, events, and the zones and lines of a channel."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from zhcedge.config.values import PROBLEM_TYPE, Fraction, Labels, Line, Point, Polygon, Positive, Section, Slug, Whole
from zhcedge.core.errors import ConfigError
from zhcedge.core.schedule import WINDOW_WORDS, parse_window, zone_of

MAX_RULES = 32
"""Most zones of a channel, and most lines."""

_LEAST_AREA = 1e-6
"""Of a zone, as a share of the picture: a pixel or two."""


_LEAST_LENGTH = 1e-3
"""Of a line, as a share of the picture's side: about a pixel."""


class TrackerConfig(Section):
    min_iou: Annotated[Fraction, Field(gt=0)] = Field(
        default=0.25, description="overlap from which a box continues a track"
    )
    new_score: Fraction | None = Field(
        default=None,
        description="score from which a box begins a track, others only continue one; null is 0.1 above the detector's "
        "threshold",
    )
    confirm_frames: Whole = Field(default=3, ge=1, le=100, description="frames in a row before a track is believed")
    max_lost_ms: Whole = Field(default=2000, ge=0, le=60_000, description="time unseen after which a track ends")
    max_lost_frames: Whole = Field(default=45, ge=0, le=10_000, description="frames unseen after which a track ends")
    stationary_s: Positive = Field(
        default=10.0, le=86_400, description="time in one place after which an object is stationary"
    )
    max_lost_stationary_ms: Whole = Field(
        default=10_000, ge=0, le=600_000, description="time unseen after which a stationary object's track ends"
    )


class EventsConfig(Section):
    labels: Labels | None = Field(default=None, description="labels that make events; null is all of them")
    update_interval_ms: Whole = Field(
        default=1000,
        ge=100,
        le=3_600_000,
        description="least time between two updates of one event; what a rule says is told at once",
    )
    required_zones: tuple[Slug, ...] = Field(
        default=(),
        max_length=MAX_RULES,
        description="where a channel has one of these zones, an event begins when its object enters one of them",
        json_schema_extra={"allowed": "a list of names of zones"},
    )


def _window(text: str) -> str:
    try:
        parse_window(text)
    except ValueError as error:
        raise PydanticCustomError(PROBLEM_TYPE, "", {"allowed": WINDOW_WORDS}) from error
    return text


WindowText = Annotated[Line, AfterValidator(_window), Field(json_schema_extra={"allowed": WINDOW_WORDS})]


class ScheduleConfig(Section):
    timezone: Line | None = Field(
        default=None,
        description="name of a time zone such as Europe/Berlin; null is this computer's own",
        json_schema_extra={"allowed": "the name of a time zone, such as Europe/Berlin or UTC"},
    )
    windows: tuple[WindowText, ...] = Field(
        min_length=1,
        max_length=MAX_RULES,
        description="when the zone holds: " + WINDOW_WORDS,
        json_schema_extra={"allowed": "a list of windows such as mon-fri 08:00-18:00"},
    )

    @field_validator("timezone")
    @classmethod
    def _check_timezone(cls, name: str | None) -> str | None:
        if name is not None:
            try:
                zone_of(name)
            except ConfigError as error:
                raise PydanticCustomError(PROBLEM_TYPE, "{fix}", {"fix": error.fix}) from error
        return name


class ZoneConfig(Section):
    points: Polygon = Field(
        description="the zone's corners [x, y], from 0 to 1",
        json_schema_extra={"allowed": "a list of 3 to 32 corners [x, y] with numbers from 0 to 1"},
    )
    labels: Labels | None = Field(default=None, description="labels that it sees; null is all of them")
    min_dwell_s: Annotated[float, Field(strict=True, ge=0, le=86_400, allow_inf_nan=False)] = Field(
        default=0.0, description="time inside after which an object has entered"
    )
    min_area: Fraction = Field(default=0.0, description="least share of the picture that an object's box covers")
    max_area: Fraction = Field(default=1.0, description="largest share of the picture that an object's box covers")
    anchor: Literal["foot", "centre"] = Field(
        default="foot", description="the point of a box that must be inside: the middle of its lower edge or its centre"
    )
    loiter_s: Positive | None = Field(
        default=None, le=86_400, description="time inside after which an object loiters; null never"
    )
    schedule: ScheduleConfig | None = Field(default=None, description="when the zone holds; null always")

    @field_validator("points")
    @classmethod
    def _check_points(cls, points: tuple[Point, ...]) -> tuple[Point, ...]:
        # Not the area of the polygon: one that crosses itself may enclose as much to the left as to the right.
        (x0, y0), *others = points
        offsets = [(x - x0, y - y0) for x, y in others]
        if all(abs(ax * by - ay * bx) < _LEAST_AREA for ax, ay in offsets for bx, by in offsets):
            raise PydanticCustomError(PROBLEM_TYPE, "the corners lie on one line; move one of them")
        return points

    @model_validator(mode="after")
    def _check_areas(self) -> ZoneConfig:
        if self.min_area >= self.max_area:
            raise PydanticCustomError(PROBLEM_TYPE, "min_area must be smaller than max_area")
        return self


class LineConfig(Section):
    points: tuple[Point, Point] = Field(
        description="the line's two ends [x, y], from 0 to 1; walking from the first to the second, what comes from "
        "the left hand goes in",
        json_schema_extra={"allowed": "a list of 2 points [x, y] with numbers from 0 to 1"},
    )
    labels: Labels | None = Field(default=None, description="labels that are counted; null is all of them")
    anchor: Literal["foot", "centre"] = Field(
        default="foot", description="the point of a box that must cross: the middle of its lower edge or its centre"
    )

    @field_validator("points")
    @classmethod
    def _check_points(cls, points: tuple[Point, Point]) -> tuple[Point, Point]:
        (x0, y0), (x1, y1) = points
        if math.hypot(x1 - x0, y1 - y0) < _LEAST_LENGTH:
            raise PydanticCustomError(PROBLEM_TYPE, "the two ends must differ")
        if x0 == x1 in (0, 1) or y0 == y1 in (0, 1):
            # A box ends there, so at most it touches the line; whether that is counted would depend on the direction.
            raise PydanticCustomError(PROBLEM_TYPE, "nothing crosses the border of the picture; move the line inside")
        return points
