"""What the doctor finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "bad", "note", "skipped"]


@dataclass(frozen=True)
class Finding:
    """One line of the screen.

    Attributes:
        part: what was looked at: "board", "camera gate".
        state: a "note" is nothing to mend; "skipped" was not looked at.
        text: what was found.
        fix: for what is bad.
    """

    part: str
    state: State
    text: str
    fix: str = ""
