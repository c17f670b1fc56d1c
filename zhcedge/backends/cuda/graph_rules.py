"""What a captured graph may hold: pure rules over facts of its nodes. Needs no GPU and no vendor library.

A graph is refused when it holds a host node, an allocation or free, or a copy with an end in host memory. Two copies
from the host are let be: the descriptor table, at most 1 KiB a frame, and an engine's small constants, which graph.py
then freezes into device memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from zhcedge.core.errors import PipelineError

PARAMETER_BYTES = 1024
"""Most bytes a frame that a graph may copy from the host."""

CONSTANT_BYTES = 64 * 1024
"""Most bytes of an engine's constants; more is data."""

_REFUSED = {"HOST": "a host function", "MEM_ALLOC": "an allocation", "MEM_FREE": "a free"}


@dataclass(frozen=True)
class GraphFacts:
    """What a captured graph does.

    Attributes:
        nodes: how many of each kind (KERNEL, MEMCPY, MEMSET, ...).
        parameter_bytes: what its copies bring from the host in one launch.
        frozen_bytes: what an engine would have copied from the host, now constants in device memory.
    """

    nodes: tuple[tuple[str, int], ...]
    parameter_bytes: int
    frozen_bytes: int


class Copy(Protocol):
    """What is asked of a copy node; see _vendor.CopyNode."""

    @property
    def source(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def is_linear(self) -> bool: ...
    @property
    def is_from_host(self) -> bool: ...
    @property
    def is_to_host(self) -> bool: ...
    @property
    def is_pinned(self) -> bool: ...


def judge(kinds: Counter[str], copies: Sequence[Copy], table_address: int, batch: int, where: str) -> list[int]:
    """Which of `copies` are to be frozen, as positions; the copy of the descriptor table stays.

    Raises PipelineError for a graph that is refused.
    """
    for kind, words in _REFUSED.items():
        if kinds[kind]:
            raise PipelineError(f"the captured graph holds {words}", where=where, fix="choose another engine")
    frozen: list[int] = []
    for position, copy in enumerate(copies):
        if copy.is_to_host:
            raise PipelineError(f"the captured graph copies {copy.size} bytes to the host", where=where)
        if not copy.is_from_host:
            continue
        if copy.source == table_address and copy.size <= PARAMETER_BYTES * batch:
            continue
        if not copy.is_pinned or not copy.is_linear:
            raise PipelineError(
                f"the captured graph copies {copy.size} bytes from host memory that may be gone", where=where
            )
        frozen.append(position)
    total = sum(copies[position].size for position in frozen)
    if total > CONSTANT_BYTES:
        raise PipelineError(f"the captured graph copies {total} bytes from the host in every run", where=where)
    _refuse_overlaps([(copies[position].source, copies[position].size) for position in frozen], where)
    return frozen


def _refuse_overlaps(ranges: list[tuple[int, int]], where: str) -> None:
    """Two copies out of the same memory: the first one's bytes were overwritten during the capture."""
    end = 0
    for address, size in sorted(ranges):
        if address < end:
            raise PipelineError("the engine reuses the memory of its parameters within a run", where=where)
        end = address + size
