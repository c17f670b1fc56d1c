"""Use case `model build`: a bundle's model as a plan for one kind of GPU, built in a child process and kept."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from zhcedge.app.build_child import order_line
from zhcedge.app.build_process import BuildProcess, LibraryFacts
from zhcedge.app.platform_facts import platform_name
from zhcedge.backends.engines.tensorrt import versions
from zhcedge.core.errors import BackendUnavailableError, ModelError, UsageError
from zhcedge.core.files import check_folder
from zhcedge.core.types import ModelFacts
from zhcedge.models._vendor_precision import GraphPrecision, read_precision
from zhcedge.models.bundle import Bundle, load_bundle
from zhcedge.models.library import plan_folder
from zhcedge.models.plans import PlanIdentity, PlanStore, read_plan

KINDS = ("tensorrt", "tensorrt_rtx")
PRECISIONS = ("int8", "fp16", "fp32")
WORKSPACE_MIB = 512

_NOT_INSTALLED = "neither tensorrt nor tensorrt_rtx is installed"
Report = Callable[[float, str], None]


@dataclass(frozen=True)
class BuildRequest:
    """What the command line asks for.

    Attributes:
        bundle: name or folder.
        engine: of KINDS; "" takes the one that is installed, TensorRT first.
        precision: of PRECISIONS; "" takes int8 for a quantised bundle, else fp16.
        batch: the largest; 0 takes the bundle's own.
        targets: compute capabilities, "sm86"; empty for the GPU of this machine.
        workspace_mib: most scratch memory of a kernel.
        memory_mib: most memory of the builder; 0 leaves a reserve to the machine.
        out: the plan's file; None keeps it in the store.
        store: folder; None for the usual one.
        is_nice: give way to other work on the machine.
    """

    bundle: str
    engine: str = ""
    precision: str = ""
    batch: int = 0
    targets: tuple[str, ...] = ()
    workspace_mib: int = WORKSPACE_MIB
    memory_mib: int = 0
    out: Path | None = None
    store: Path | None = None
    is_nice: bool = False


@dataclass(frozen=True)
class BuildReport:
    """What came of it.

    Attributes:
        identity, path, size_bytes: of the plan.
        was_there: nothing had to be built.
        warnings: of the library.
    """

    identity: PlanIdentity
    path: Path
    size_bytes: int
    was_there: bool
    warnings: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        found = self.identity
        return {
            "plan": str(self.path),
            "bytes": self.size_bytes,
            "was_there": self.was_there,
            "model": found.name,
            "model_sha256": found.model,
            "precision": found.precision,
            "batch": found.input_shape[0],
            "engine": found.engine,
            "version": found.version,
            "targets": list(found.targets),
            "platform": found.platform,
            "workspace_mib": found.workspace_mib,
            "warnings": list(self.warnings),
        }


def build_model(
    request: BuildRequest,
    report: Report = lambda share, what: None,
    on_process: Callable[[BuildProcess], None] = lambda process: None,
) -> BuildReport:
    """Build a plan, unless it is there already. Blocks, for minutes on a small board.

    Args:
        report: told how much is done, 0..1, and what is being done.
        on_process: given the child, so that another thread can end it.

    Raises UsageError, ModelError, BackendUnavailableError, OutputError, and PipelineError when the builder was killed
    or crashed. Then nothing is left behind.
    """
    bundle = load_bundle(request.bundle)
    precision = choose_precision(request.precision, read_precision(bundle.model_path), bundle.facts.name)
    facts = with_batch(bundle.facts, request.batch)
    kind = request.engine or installed_kind()
    if request.out is not None:
        check_folder(request.out, "the plan")
    store = PlanStore(request.store or plan_folder())
    with BuildProcess(kind, request.memory_mib) as process:
        on_process(process)
        library = process.facts()
        identity = identity_of(facts, kind, library, precision, request.targets, request.workspace_mib)
        if request.out is None and (found := _stored(store, identity)):
            return found
        try:
            done = _order(process, request, bundle, identity, store, report)
        finally:
            process.close()
            store.sweep(process.pid)
            if request.out is not None:
                PlanStore(request.out.parent).sweep(process.pid)
    warnings = done["warnings"]
    path = Path(str(done["path"]))
    said = tuple(map(str, warnings)) if isinstance(warnings, list) else ()
    return BuildReport(identity, path, path.stat().st_size, was_there=False, warnings=said)


def _order(
    process: BuildProcess,
    request: BuildRequest,
    bundle: Bundle,
    identity: PlanIdentity,
    store: PlanStore,
    report: Report,
) -> dict[str, object]:
    order = order_line(
        bundle.model_path,
        identity,
        bundle.facts.input_name,
        store=store.folder,
        out=request.out,
        is_nice=request.is_nice,
    )
    return process.build(order, report)


def _stored(store: PlanStore, wanted: PlanIdentity) -> BuildReport | None:
    """The plan that is there already, verified: a damaged one is built again."""
    for path, identity in store.plans():
        if not identity.differences(wanted):
            try:
                read_plan(path, wanted)
            except ModelError:
                return None
            return BuildReport(identity, path, path.stat().st_size, was_there=True)
    return None


def identity_of(
    facts: ModelFacts,
    kind: str,
    library: LibraryFacts,
    precision: str,
    targets: Sequence[str] = (),
    workspace_mib: int = WORKSPACE_MIB,
) -> PlanIdentity:
    """What the plan of these facts is called. Raises UsageError or BackendUnavailableError for impossible targets."""
    return PlanIdentity(
        model=facts.sha256,
        name=facts.name,
        precision=precision,
        input_shape=facts.input_shape,
        workspace_mib=workspace_mib,
        engine=kind,
        version=library.version,
        targets=versions.choose_targets(kind, targets, library.own),
        platform="" if versions.is_rtx(kind) else platform_name(),
    )


def choose_precision(wanted: str, graph: GraphPrecision, name: str) -> str:
    """The precision to build. Raises UsageError for one that the graph does not have in it."""
    if not wanted:
        return "int8" if graph.is_quantised else "fp16"
    if wanted == "int8" and not graph.is_quantised:
        raise UsageError(
            f"{name} is not quantised, so there is no int8 in it",
            fix=f"make such a bundle first: zhc-edge model quantize {name} --video FILE --out FOLDER",
        )
    if wanted != "int8" and graph.is_quantised:
        raise UsageError(
            f"{name} is quantised: a plan of it is int8, whatever --precision says",
            fix="name the bundle that it was made of, or leave --precision out",
        )
    if wanted == "fp32" and graph.is_half:
        raise UsageError(f"the weights of {name} are FP16 already", fix="build it with --precision fp16")
    return wanted


def with_batch(facts: ModelFacts, batch: int) -> ModelFacts:
    """The facts for a batch, 0 for the model's own. Raises UsageError for one that the model does not take."""
    if batch in (0, facts.input_shape[0]):
        return facts
    if not facts.has_free_batch:
        raise UsageError(
            f"{facts.name} is made for batches of {facts.input_shape[0]}",
            fix="leave --batch out, or export the model with a free batch",
        )
    return facts.with_batch(batch)


def installed_kind() -> str:
    """The library that is installed, TensorRT before TensorRT for RTX. Raises BackendUnavailableError without one."""
    for kind in KINDS:
        found = importlib.util.find_spec(kind)
        if found is not None and found.origin is not None:  # type stubs alone make a package without code
            return kind
    raise BackendUnavailableError(
        _NOT_INSTALLED,
        fix="on a Jetson apt install python3-libnvinfer; for RTX, or to build without a GPU, "
        "pip install 'zhcedge[tensorrt-rtx]'",
    )
