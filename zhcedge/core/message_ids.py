"""What an operator greps the journal for: `journalctl MESSAGE_ID=...`. Never changed, never used twice.

Random numbers of 128 bits, as sd_journal_print(3) wants them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class MessageId(enum.Enum):
    """Names are for people; the journal has the numbers."""

    PHASE = "e5c6181ff9414c68a641b90344b01245"
    """The daemon's phase is another one; ZHC_PHASE says which."""
    FRAME_PROCESS_ENDED = "2d0c55411ace47ef8d94ac0687277637"
    """The frame process died, or was killed because it stood still. It is started again."""
    CRASH_REPORT = "5172e771ce2748a0be50c7c08750eee6"
    """A report of that was written: `zhc-edge crashes`."""
    CAMERA = "abb39e4a39b248ef91d28edc7dc3b3bc"
    """A camera's state is another one; ZHC_CAMERA and ZHC_STATE say which."""
    BROKER_LOST = "b3c22b4d95dc4d389109d7f37bb7fd55"
    """There is no connection to the MQTT broker."""
    BROKER_BACK = "d6e5e2a18da741a69e0b9b4b6ab09828"
    """There is one (again)."""
    RELOAD = "e6e988dc89734008a0aa91016f1433a1"
    """A reload has come to an end; ZHC_RELOAD says how: applied, unchanged, refused, reverted."""
    FALLBACK = "39be09fd2758472c947d7e1f0a76fae2"
    """The configuration has errors, and the last good one runs instead."""
    LEDGER_VIOLATION = "cc265d4eec8249558514fadef0e76039"
    """The active phase allocated, copied or waited where it must not; ZHC_VIOLATION says what."""
    PLAN_BUILT = "e4f2c360f2d84f539a68f6b4b2859bc5"
    """A TensorRT plan is there."""
    PLAN_FAILED = "b43aa1f64a754a9c8b92c114bbbf45ab"
    """It could not be built; the run goes on without it."""


def tagged(message: MessageId | None = None, **fields: str) -> dict[str, Mapping[str, str]]:
    """For `extra` of a logging call: fields of the journal, upper case with ZHC_ in front, e.g. camera="gate"."""
    found = {f"ZHC_{name.upper()}": value for name, value in fields.items()}
    if message is not None:
        found["MESSAGE_ID"] = message.value
    return {"journal": found}
