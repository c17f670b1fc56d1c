"""How much of its life an eMMC has used, as the kernel shows it.

JEDEC JESD84-B51, 7.4.29 to 31: DEVICE_LIFE_TIME_EST_TYP_A and _B in tenths of the life (1: up to 10 %, 11: exceeded),
PRE_EOL_INFO 1 normal, 2 four fifths of the reserve are used, 3 urgent. Linux: Documentation/mmc/mmc-dev-attrs.rst.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WORN_TENTHS = 9
"""From here on somebody should know: four fifths are used for sure."""


@dataclass(frozen=True)
class FlashLife:
    """Of one device.

    Attributes:
        name: "mmcblk0".
        tenths: of its life that may be used, of the more worn kind of cells; 0 where it does not say.
        reserve: 1 normal, 2 low, 3 almost gone; 0 where it does not say.
    """

    name: str
    tenths: int
    reserve: int

    @property
    def is_worn(self) -> bool:
        return self.tenths >= WORN_TENTHS or self.reserve > 1

    @property
    def text(self) -> str:
        """For people."""
        used = f"up to {10 * self.tenths} % of its life is used" if self.tenths <= 10 else "its life is exceeded"
        return f"{self.name}: {used if self.tenths else 'it does not say how worn it is'}" + (
            "; its reserve is low" if self.reserve > 1 else ""
        )


def flash_lives(root: Path = Path("/sys/block")) -> Iterator[FlashLife]:
    """Every eMMC of this computer; SD cards say nothing and are left out. Reads sysfs only."""
    for device in sorted(root.glob("mmcblk*")):
        try:
            numbers = [int(word, 16) for word in (device / "device/life_time").read_text().split()]
            reserve = int((device / "device/pre_eol_info").read_text(), 16)
        except (OSError, ValueError):
            continue
        yield FlashLife(device.name, max(numbers, default=0), reserve)
