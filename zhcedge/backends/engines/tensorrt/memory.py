"""TensorRT's device memory, all of it out of the arena.

So every byte is in the arena's account under a name of ours, and what TensorRT asks for after the seal is refused and
counted there: the arena's growth instrument, whose canary proves that it sees, is the allocator's instrument too.
Weights stay until the engine is closed; scratch of the lanes is no business of this allocator (engine.py).
"""

from __future__ import annotations

import itertools
import threading
from typing import Protocol

from zhcedge.core.errors import PhaseError, PipelineError
from zhcedge.core.types import Tensor


class DeviceArena(Protocol):
    """What is needed of the cuda device's arena."""

    def tensor(self, name: str, shape: tuple[int, ...], dtype: str, owner: str) -> Tensor[int]: ...
    def release(self, owner: str) -> None: ...


class ArenaAllocator:
    """Allocates for TensorRT. Any thread; never raises.

    Attributes:
        allocations, frees, refused: how often TensorRT asked, gave back, and got nothing.
        failure: why it got nothing the last time.
    """

    def __init__(self, arena: DeviceArena) -> None:
        self._arena = arena
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._owners: dict[int, str] = {}
        self._sizes: dict[int, int] = {}
        self.allocations = self.frees = self.refused = 0
        self.failure: PhaseError | PipelineError | None = None

    @property
    def held_bytes(self) -> int:
        with self._lock:
            return sum(self._sizes.values())

    def allocate(self, size_bytes: int) -> int:
        """An address, aligned to 256 bytes; 0 for no bytes, and when there are none left or the arena is sealed."""
        if size_bytes == 0:
            return 0
        with self._lock:
            self.allocations += 1
            owner = f"tensorrt memory {next(self._numbers)}"
        try:
            address = self._arena.tensor("tensorrt", (size_bytes,), "uint8", owner).buffer
        except (PhaseError, PipelineError) as error:
            with self._lock:
                self.refused += 1
                self.failure = error
            return 0
        with self._lock:
            self._owners[address], self._sizes[address] = owner, size_bytes
        return address

    def free(self, address: int) -> None:
        """Give memory back to the arena; nothing happens for 0 or an unknown address."""
        with self._lock:
            owner = self._owners.pop(address, "")
            self._sizes.pop(address, None)
            self.frees += bool(owner)
        if owner:
            self._arena.release(owner)
