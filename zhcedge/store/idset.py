"""A set of row ids that takes a fraction of a byte for each."""

from __future__ import annotations

from collections import OrderedDict

_BITS = 4096  # ids a block; a block is one int


class IdSet:
    """Ids above 0, added in growing order. A million neighbours take 125 KB. One thread."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, int] = OrderedDict()  # in growing order: number of the block -> its bits
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, row_id: int) -> bool:
        return bool(self._blocks.get(row_id // _BITS, 0) >> row_id % _BITS & 1)

    def add(self, row_id: int) -> None:
        """Add an id that is above all others, those that were removed included."""
        number = row_id // _BITS
        self._blocks[number] = self._blocks.get(number, 0) | 1 << row_id % _BITS
        self._count += 1

    def remove(self, row_id: int) -> bool:
        """Whether it was there."""
        if row_id not in self:
            return False
        number = row_id // _BITS
        bits = self._blocks[number] & ~(1 << row_id % _BITS)
        if bits:
            self._blocks[number] = bits
        else:
            del self._blocks[number]
        self._count -= 1
        return True

    def clear(self) -> None:
        self._blocks.clear()
        self._count = 0

    @property
    def first(self) -> int:
        """The smallest id; 0 for none."""
        for number, bits in self._blocks.items():
            return number * _BITS + _lowest(bits)
        return 0

    def next_after(self, row_id: int) -> int:
        """The smallest id above `row_id`; 0 for none. Quick near the beginning of the set."""
        for number, bits in self._blocks.items():
            if number < row_id // _BITS:
                continue
            above = bits >> (row_id % _BITS + 1) << (row_id % _BITS + 1) if number == row_id // _BITS else bits
            if above:
                return number * _BITS + _lowest(above)
        return 0


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
