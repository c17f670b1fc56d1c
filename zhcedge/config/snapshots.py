"""Pictures of events: whether a channel keeps them, and how."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from zhcedge.config.values import Flag, Fraction, Section


class SnapshotsConfig(Section):
    enabled: Flag = Field(default=False, description="keep the best picture of every event, whole and cropped")
    crop_margin: Fraction = Field(
        default=0.3, description="what the crop shows around the object, as a share of the object's size on each side"
    )
    min_interval_s: Annotated[float, Field(strict=True, ge=1, le=3600, allow_inf_nan=False)] = Field(
        default=1.0, description="least time between two pictures of the channel"
    )
