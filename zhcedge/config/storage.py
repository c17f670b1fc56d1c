"""Where recordings and pictures are kept, and how much of the disk they may take."""

from __future__ import annotations

from pydantic import Field

from zhcedge.config.values import PathText, Section, Whole


class StorageConfig(Section):
    dir: PathText | None = Field(
        default=None, description="folder for clips and snapshots; null is `media` in $STATE_DIRECTORY"
    )
    budget_mb: Whole | None = Field(
        default=None,
        ge=64,
        le=100_000_000,
        description="disk space for everything: max_mb, history_max_mb, plans_max_mb and outbox.max_mb together may "
        "not be more; null: they may",
    )
    max_mb: Whole = Field(default=4096, ge=16, le=100_000_000, description="most disk space that they take")
    max_age_days: Whole = Field(default=30, ge=1, le=3650, description="age after which they are deleted")
    min_free_mb: Whole = Field(
        default=512, ge=0, le=100_000_000, description="free space on the disk that is kept for others"
    )
    plans_max_mb: Whole = Field(
        default=4096, ge=64, le=1_000_000, description="disk space that TensorRT plans take; the oldest go first"
    )
    history_days: Whole = Field(default=90, ge=1, le=3650, description="age after which past events are forgotten")
    history_max_mb: Whole = Field(
        default=256, ge=1, le=100_000, description="disk space from which the oldest past events are forgotten"
    )
