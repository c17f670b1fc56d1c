"""Every key of the example made wrong in every way, and the file cut off anywhere: line and column, never a traceback.

`mutations` is for the running daemon too: tests/system/test_config_mutations.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from zhcedge.config.load import LoadedConfig, examine
from zhcedge.config.splice import with_value, without_value
from zhcedge.config.tree import parse

pytestmark = [pytest.mark.slow, pytest.mark.company]

EXAMPLE = Path(__file__).parents[2] / "config/zhc-edge.yaml"
STEP_BYTES = 64
PLACE = re.compile(r":\d+:\d+: ")

WRONG: dict[str, object] = {
    "a mapping": {"nonsense": 1},
    "text": "nonsense \u2028 {",
    "a huge number": 10**60,
    "huge text": "x" * 70_000,
    "nothing": None,
}


def leaves(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    is_leaf = True
    for key, child in items:
        is_leaf = False
        yield from leaves(child, (*path, str(key)))
    if is_leaf:
        yield path


def mutations(text: str) -> Iterator[tuple[str, str]]:
    """(what it is, the text), every one of them another text."""
    for path in leaves(parse(text, "").data):
        name = ".".join(path)
        for kind, value in WRONG.items():
            yield f"{name}: {kind}", with_value(text, path, value)
        yield f"{name}: missing", without_value(text, path)
        if not path[-1].isdigit():
            yield f"{name}: misspelt", with_value(text, (*path[:-1], path[-1] + "x"), "nonsense")


def cuts(text: str) -> Iterator[tuple[str, str]]:
    for length in range(0, len(text), STEP_BYTES):
        yield f"cut at {length}", text[:length]


@pytest.mark.parametrize("source", [mutations, cuts])
def test_each_is_taken_or_explained_with_line_and_column(tmp_path: Path, source: object) -> None:
    text, path = EXAMPLE.read_text(), tmp_path / "config.yaml"
    refused = taken = 0
    for what, mutated in source(text):  # type: ignore[operator]
        path.write_text(mutated)
        outcome = examine(path)
        if isinstance(outcome, LoadedConfig):
            taken += 1
            continue
        refused += 1
        for problem in outcome:
            said = str(problem)
            assert said.startswith(str(path)), what
            assert PLACE.match(said.removeprefix(str(path))), f"{what}: {said}"
            assert "\n" not in said, what
            assert len(said) < 2_000, what
    assert refused
    assert taken
