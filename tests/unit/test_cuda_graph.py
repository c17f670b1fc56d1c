"""What makes a captured graph acceptable."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest

from zhcedge.backends.cuda.graph_rules import judge
from zhcedge.core.errors import PipelineError

TABLE = 0x1000


@dataclass(frozen=True)
class CopyFacts:
    source: int = TABLE
    size: int = 80
    is_linear: bool = True
    is_from_host: bool = True
    is_to_host: bool = False
    is_pinned: bool = True


ENGINE = CopyFacts(source=0x8000, size=992)


def frozen(*copies: CopyFacts, **kinds: int) -> list[int]:
    return judge(Counter({"KERNEL": 4, "MEMCPY": len(copies), **kinds}), copies, TABLE, 1, "lane 0")


def test_the_descriptor_table_stays_and_pinned_constants_are_frozen() -> None:
    within = CopyFacts(source=0x9000, is_from_host=False)
    assert frozen(CopyFacts(), ENGINE, within, replace(ENGINE, source=0x8000 + 992)) == [1, 3]


@pytest.mark.parametrize("kind", ["HOST", "MEM_ALLOC", "MEM_FREE"])
def test_host_and_memory_nodes_are_refused(kind: str) -> None:
    with pytest.raises(PipelineError, match="holds"):
        frozen(CopyFacts(), **{kind: 1})


@pytest.mark.parametrize(
    "bad",
    [
        [replace(ENGINE, is_from_host=False, is_to_host=True)],
        [replace(ENGINE, is_pinned=False)],
        [replace(ENGINE, is_linear=False)],
        [replace(ENGINE, size=65537)],
        [ENGINE, replace(ENGINE, source=0x8000 + 991)],
    ],
    ids=["to the host", "pageable", "rows", "large", "overlap"],
)
def test_copies_that_cannot_be_frozen_are_refused(bad: list[CopyFacts]) -> None:
    with pytest.raises(PipelineError):
        frozen(CopyFacts(), *bad)
