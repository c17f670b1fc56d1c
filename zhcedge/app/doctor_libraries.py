"""What the doctor finds of libraries: whether each one loads, and its version."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass

from zhcedge.app.doctor_commands import Outcome, ask
from zhcedge.app.doctor_probe import CUDA_DRIVER
from zhcedge.app.findings import Finding, State
from zhcedge.app.interpreter import command_for

LOAD_S = 60.0
"""CUDA libraries of a gigabyte, from an SD card."""


@dataclass(frozen=True)
class Library:
    """A library that a profile may need.

    Attributes:
        module: what is imported.
        distributions: where its version stands if it does not say.
        needed_by: profiles that can't run without it.
    """

    name: str
    module: str
    distributions: tuple[str, ...] = ()
    needed_by: tuple[str, ...] = ()


LIBRARIES = (
    Library("cuda", CUDA_DRIVER, (), ("rtx",)),
    Library("onnxruntime", "onnxruntime", ("onnxruntime", "onnxruntime-gpu"), ("cpu", "rtx")),
    Library("av", "av", ("av",), ("cpu", "rtx")),
    Library("cuda-bindings", "cuda.bindings.driver", ("cuda-bindings",), ("rtx",)),
    Library("pycuda", "pycuda.driver", ("pycuda",), ("rtx",)),
    Library("PyNvVideoCodec", "PyNvVideoCodec", ("PyNvVideoCodec",), ("rtx",)),
    Library("tensorrt", "tensorrt", ("tensorrt",)),
    Library("tensorrt-rtx", "tensorrt_rtx", ("tensorrt-rtx-cu13",)),
    Library("jetson-utils", "jetson_utils"),
    Library("gstreamer", "gi", ("PyGObject",)),
)


def look_at_libraries(profile: str, loads_cuda: bool) -> Iterator[Finding]:
    """Each one that is there is loaded in a process of its own: some seconds each. One line for all that are well.

    Args:
        profile: what it can't run without is bad where it is broken; what is missing the configuration's check tells.
        loads_cuda: a driver is there, so its library must be, too.
    """
    well = []
    for library in LIBRARIES if loads_cuda else LIBRARIES[1:]:
        if library.module != CUDA_DRIVER and not _is_there(library.module):
            continue
        outcome = ask((*command_for("zhcedge.app.doctor_probe"), library.module, *library.distributions), LOAD_S)
        version, note = _answer(outcome)
        if outcome.code == 0 and version + note:
            well.append(" ".join(filter(None, (library.name, version, f"({note})" if note else ""))))
            continue
        state: State = "bad" if profile in library.needed_by else "note"
        what = f"{library.name} can't be loaded: {outcome.why}"
        yield Finding(
            "library", state, what, "install it again" if state == "bad" else "install it again, or remove it"
        )
    yield Finding("libraries", "note", ", ".join(well) or "none")


def _is_there(module: str) -> bool:
    """Imports no library. A folder without code, as packages of types leave one, is none."""
    top = importlib.util.find_spec(module.partition(".")[0])
    return top is not None and (top.origin is not None or "." in module)


def _answer(outcome: Outcome) -> tuple[str, str]:
    lines = outcome.out.splitlines()
    try:
        facts = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return "", ""
    return (str(facts.get("version", "")), str(facts.get("note", ""))) if isinstance(facts, dict) else ("", "")
