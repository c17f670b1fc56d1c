"""The process that builds a plan: nothing else of the daemon is in it, so that its memory and its crashes are its own.

Started as `python -m zhcedge.app.build_child KIND PARENT_PID` by app/build_process.py. JSON lines on standard output:
{"facts": {"version", "own"}}; then, once an order came as a line on standard input, {"progress": [share, what]}, and
at the end {"done": {...}} or {"error": {...}}. Standard input that ends without an order ends it. What libraries print
goes to standard error. It dies with its parent, and the system's out-of-memory killer is told to take it first.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from zhcedge.app.frame_commands import error_facts
from zhcedge.backends.engines.tensorrt import _vendor as tensorrt
from zhcedge.backends.engines.tensorrt.builder import BuildOrder, BuiltPlan, build
from zhcedge.core.errors import ModelError, OutputError, PipelineError, ZhcEdgeError
from zhcedge.core.files import write_whole
from zhcedge.models._vendor_precision import half_precision, read_precision
from zhcedge.models.plans import PlanIdentity, PlanStore, write_plan

_PR_SET_PDEATHSIG = 1
_NICER = 10

Send = Callable[[dict[str, object]], None]


def main(argv: list[str]) -> int:
    """Report facts, take an order, build. Returns the exit code of the error that ended it, or 0."""
    kind, parent = argv[0], int(argv[1])
    _be_expendable(parent)
    send = _private_output()
    try:
        trt = tensorrt.load(kind)
        send({"facts": {"version": tensorrt.version(trt), "own": tensorrt.compute_capability()}})
        line = sys.stdin.readline()
        if line:
            send({"done": _build(trt, kind, json.loads(line), send)})
    except ZhcEdgeError as error:
        return _fail(error, send)
    except MemoryError:
        return _fail(PipelineError("building the plan needs more memory than there is", where=kind), send)
    return 0


def _fail(error: ZhcEdgeError, send: Send) -> int:
    send({"error": error_facts(error)})
    return error.exit_code


def order_line(
    model_path: Path, identity: PlanIdentity, input_name: str, *, store: Path | None, out: Path | None, is_nice: bool
) -> str:
    """What the child takes on its standard input."""
    return json.dumps(
        {
            "model_path": str(model_path),
            "identity": asdict(identity),
            "input_name": input_name,
            "store": str(store) if store else None,
            "out": str(out) if out else None,
            "is_nice": is_nice,
        }
    )


def _build(trt: tensorrt.Vendor, kind: str, order: dict[str, object], send: Send) -> dict[str, object]:
    if order["is_nice"]:
        os.nice(_NICER)
    facts = order["identity"]
    if not isinstance(facts, dict):
        raise ModelError("the order has no identity", where="build")
    identity = PlanIdentity.from_dict(facts)
    path = Path(str(order["model_path"]))
    send({"progress": [0.0, "reading the graph"]})
    found = read_precision(path)
    onnx = path.read_bytes() if identity.precision == "fp32" or found.is_half else half_precision(path)
    store = PlanStore(Path(str(order["store"]))) if order["store"] else None
    timing = _TimingFile(store, identity)
    built = build(
        trt,
        kind,
        BuildOrder(
            name=identity.name,
            onnx=onnx,
            onnx_path=str(path),
            opset=found.opset,
            input_name=str(order["input_name"]),
            input_shape=identity.input_shape,
            targets=identity.targets,
            workspace_bytes=identity.workspace_mib * 2**20,
            timing_cache=timing.read(),
        ),
        lambda share, what: send({"progress": [share, what]}),
    )
    timing.write(built)
    return {
        "path": str(_keep(built, identity, store, order["out"])),
        "bytes": len(built.plan),
        "warnings": built.warnings,
    }


def _keep(built: BuiltPlan, identity: PlanIdentity, store: PlanStore | None, out: object) -> Path:
    if out is not None:
        path = Path(str(out))
        write_plan(path, identity, built.plan)
        return path
    if store is None:
        raise OutputError("there is no place for the plan", where=identity.name)
    return store.put(identity, built.plan)


class _TimingFile:
    """Measurements of this GPU, library and driver, for the next build; lost ones cost time only."""

    def __init__(self, store: PlanStore | None, identity: PlanIdentity) -> None:
        words = "-".join((identity.engine, identity.version, *identity.targets, identity.platform or "any"))
        name = "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in words)
        self._path = store.folder / f"timing-{name}.cache" if store else None

    def read(self) -> bytes:
        try:
            return b"" if self._path is None else self._path.read_bytes()
        except OSError:
            return b""

    def write(self, built: BuiltPlan) -> None:
        if self._path is not None and built.timing_cache:
            with contextlib.suppress(OutputError, OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self._path, built.timing_cache, "the timing cache")


def _private_output() -> Send:
    """Where messages go; what libraries print on standard output goes to standard error from now on."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(message: dict[str, object]) -> None:
        stream.write(json.dumps(message) + "\n")
        stream.flush()

    return send


def _be_expendable(parent: int) -> None:
    """Die with the parent; be the first to go when memory is short."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before the call above took effect
        os._exit(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
