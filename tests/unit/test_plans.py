"""Plan files, their store, and what a start does with what it finds there."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.sinks import disk_full_at, files
from zhcedge.core.errors import ModelError, OutputError
from zhcedge.models.plan_choice import choose_plan
from zhcedge.models.plans import MAGIC, PlanIdentity, PlanStore, read_identity, read_plan, write_plan

WANTED = PlanIdentity(
    model="ab" * 32,
    name="tiny",
    precision="int8",
    input_shape=(4, 3, 64, 64),
    workspace_mib=512,
    engine="tensorrt",
    version="10.3.0",
    targets=("sm87",),
    platform="l4t-36.4.3",
)
PLAN = bytes(range(256)) * 4
CHANGES: dict[str, dict[str, object]] = {
    "of model": {"model": "cd" * 32},
    "precision": {"precision": "fp16"},
    "input": {"input_shape": (8, 3, 64, 64)},
    "workspace": {"workspace_mib": 256},
    "library": {"engine": "tensorrt_rtx"},
    "library version": {"version": "10.13.0"},
    "built for sm86": {"targets": ("sm86",)},
    "platform": {"platform": "l4t-36.4.4"},
    "build recipe": {"recipe": 0},
}


def changed(**changes: object) -> PlanIdentity:
    return replace(WANTED, **changes)  # type: ignore[arg-type]


def test_a_plan_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    write_plan(path, WANTED, PLAN)
    assert read_plan(path, WANTED) == (WANTED, PLAN)
    assert read_identity(path) == WANTED
    assert files(tmp_path) == ["a.plan"]


@pytest.mark.parametrize(("word", "change"), CHANGES.items(), ids=CHANGES)
def test_a_plan_of_something_else_is_refused_and_the_difference_named(
    tmp_path: Path, word: str, change: dict[str, object]
) -> None:
    write_plan(tmp_path / "a.plan", changed(**change), PLAN)
    with pytest.raises(ModelError, match=word) as caught:
        read_plan(tmp_path / "a.plan", WANTED)
    assert "zhc-edge model build" in caught.value.fix
    assert changed(**change).key != WANTED.key
    assert changed(**change).file_name != WANTED.file_name


def test_a_plan_for_several_gpus_serves_each() -> None:
    both = changed(targets=("sm86", "sm87"))
    assert both.differences(WANTED) == ()
    assert WANTED.differences(both) != ()


@given(data=st.data())
def test_a_changed_byte_or_a_lost_end_is_refused_wherever_it_is(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("plans") / "a.plan"
    write_plan(path, WANTED, PLAN)
    whole = path.read_bytes()
    if data.draw(st.booleans()):
        torn = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        at = data.draw(st.integers(0, len(whole) - 1))
        torn = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    path.write_bytes(torn)
    with pytest.raises(ModelError):
        read_plan(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x7fELF and so on",
        MAGIC,
        MAGIC + struct.pack("<I", 2**31) + b"{}",
        MAGIC + struct.pack("<I", 2) + b"{}",
        MAGIC + struct.pack("<I", 4) + b"null",
        MAGIC + struct.pack("<I", 2) + b"\xff\xff",
        MAGIC + struct.pack("<I", 66) + json.dumps({"identity": [], "bytes": 1, "sha256": "x"}).encode().ljust(66),
    ],
    ids=["empty", "foreign", "no header", "huge header", "no fields", "null", "no text", "wrong types"],
)
def test_what_is_no_plan_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.plan").write_bytes(content)
    with pytest.raises(ModelError, match=r"no plan|damaged"):
        read_plan(tmp_path / "a.plan")
    assert PlanStore(tmp_path).plans() == []


def test_a_plan_with_something_behind_it_is_refused(tmp_path: Path) -> None:
    write_plan(tmp_path / "a.plan", WANTED, PLAN)
    with (tmp_path / "a.plan").open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(ModelError, match="followed by"):
        read_plan(tmp_path / "a.plan")


def test_a_full_disk_leaves_the_older_plan_and_nothing_else(tmp_path: Path) -> None:
    store = PlanStore(tmp_path / "plans")
    store.put(WANTED, PLAN)
    with disk_full_at(2000), pytest.raises(OutputError, match="can't be written"):
        store.put(WANTED, PLAN * 10)
    assert store.get(WANTED) == (WANTED, PLAN)
    assert len(files(store.folder)) == 1


def test_the_plan_unused_for_longest_goes_first_and_use_counts(tmp_path: Path) -> None:
    store = PlanStore(tmp_path, limit_bytes=3 * (len(PLAN) + 700))
    identities = [changed(model=f"{number:064}") for number in range(4)]
    for age, identity in enumerate(identities[:3]):
        os.utime(store.put(identity, PLAN), (age + 1, age + 1))
    for identity in identities[:2]:
        store.path_of(identity).with_suffix(".kernels").write_bytes(b"compiled")
    store.get(identities[0])
    store.put(identities[3], PLAN)
    assert [name for name in files(tmp_path) if name.endswith(".kernels")] == [
        store.path_of(identities[0]).with_suffix(".kernels").name
    ]
    assert {identity.model for _, identity in store.plans()} == {identities[index].model for index in (0, 2, 3)}


def test_a_plan_above_the_limit_is_kept_alone(tmp_path: Path) -> None:
    store = PlanStore(tmp_path, limit_bytes=10)
    store.put(changed(model="0" * 64), PLAN)
    store.put(WANTED, PLAN)
    assert [identity for _, identity in store.plans()] == [WANTED]


def test_a_store_without_the_plan_says_how_to_make_it(tmp_path: Path) -> None:
    store = PlanStore(tmp_path / "none")
    assert not store.has(WANTED)
    with pytest.raises(ModelError, match="zhc-edge model build"):
        store.get(WANTED)


def test_sweeping_removes_what_one_killed_process_left(tmp_path: Path) -> None:
    for name in (".a.plan.41.part", ".a.plan.42.part", "b.plan", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    PlanStore(tmp_path).sweep(42)
    assert files(tmp_path) == [".a.plan.41.part", "b.plan", "notes.txt"]
    PlanStore(tmp_path / "none").sweep(42)


# -- the choice ------------------------------------------------------------------------------------------------
def test_the_wanted_plan_is_loaded_and_nothing_is_built() -> None:
    others = [changed(precision="fp16"), WANTED, changed(targets=("sm86", "sm87"))]
    choice = choose_plan(WANTED, [(Path(f"{number}"), identity) for number, identity in enumerate(others)])
    assert (choice.plan, choice.builds, choice.reason) == (Path("1"), False, "")


@pytest.mark.parametrize(
    ("change", "runs"),
    [
        ({"precision": "fp16"}, True),
        ({"workspace_mib": 256}, True),
        ({"recipe": 0}, True),
        ({"input_shape": (8, 3, 64, 64)}, True),
        ({"input_shape": (2, 3, 64, 64)}, False),
        ({"input_shape": (4, 3, 96, 64)}, False),
        ({"model": "cd" * 32}, False),
        ({"version": "10.13.0"}, False),
        ({"engine": "tensorrt_rtx"}, False),
        ({"targets": ("sm86",)}, False),
        ({"platform": "l4t-36.4.4"}, False),
    ],
    ids=str,
)
def test_an_older_plan_runs_meanwhile_only_where_it_still_can(change: dict[str, object], runs: bool) -> None:
    older = changed(**change)
    choice = choose_plan(WANTED, [(Path("older"), older)])
    assert choice.builds
    assert choice.plan == (Path("older") if runs else None)
    assert choice.reason


def test_without_any_plan_the_reason_says_so() -> None:
    choice = choose_plan(WANTED, [])
    assert (choice.plan, choice.builds) == (None, True)
    assert "none was built yet" in choice.reason
