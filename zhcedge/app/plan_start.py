"""Which engine a start runs: the plan that was built for it, or something that works while that plan is built.

A plan of another TensorRT, GPU, driver or model never stops a start: it is left alone, an older plan that still runs
here or ONNX Runtime takes its place, the state is `degraded` with the reason, and the wanted plan is built in a process
of its own. The finished plan is taken by the next start of the frame process, which the control process brings about
(app/plan_swap.py). Not run on hardware yet.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from zhcedge.app.build_process import BuildProcess, LibraryFacts
from zhcedge.app.model_build import BuildRequest, identity_of
from zhcedge.backends.registry import ENGINES
from zhcedge.config.schema import Config
from zhcedge.core.errors import ConfigError, ModelError
from zhcedge.core.ports import Device, Engine
from zhcedge.core.requests import EngineRequest
from zhcedge.core.types import ModelFacts
from zhcedge.models.bundle import Bundle
from zhcedge.models.library import plan_folder
from zhcedge.models.plan_choice import choose_plan
from zhcedge.models.plans import KERNELS_SUFFIX, PlanIdentity, PlanStore, read_plan
from zhcedge.profiles import Profile

log = logging.getLogger(__name__)

_ENGINES = {"tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt-rtx"}  # library -> name in the registry

AskLibrary = Callable[[str], LibraryFacts]


@dataclass(frozen=True)
class EngineStart:
    """What to open.

    Attributes:
        engine, request: name in the registry, and what its factory is asked for.
        degraded: why it is not what the configuration wants, for people; empty when it is.
        builds: the wanted plan is to be built meanwhile.
        plan_path: where the request's plan came from.
    """

    engine: str
    request: EngineRequest
    degraded: str = ""
    builds: bool = False
    plan_path: Path | None = None

    def as_message(self) -> dict[str, object]:
        """What the frame process tells the control process of a degraded start."""
        return {"degraded": self.degraded, "builds": self.builds, "batch": self.request.facts.input_shape[0]}


def plain_request(config: Config, bundle: Bundle, facts: ModelFacts) -> EngineRequest:
    """For an engine that runs the model's own file."""
    return EngineRequest(bundle.model_path, facts, config.engine.threads, config.engine.fused)


def start_engine(
    config: Config,
    chosen: Profile,
    bundle: Bundle,
    facts: ModelFacts,
    store: PlanStore | None = None,
    ask: AskLibrary | None = None,
) -> EngineStart:
    """Decide what a start opens. Blocks for a second while the library is asked for its version.

    Args:
        facts: of the bundle, for the batch of the run.
        store: of plans; None for the usual one.
        ask: tells a library's version and the GPU; None asks in a child process.

    Raises ConfigError where the profile has no GPU; BackendUnavailableError without the library; UsageError for a GPU
    or precision that can't be had.
    """
    plain = EngineStart(chosen.engine, plain_request(config, bundle, facts))
    kind = config.engine.library
    if kind == "profile":
        return plain
    if chosen.device != "cuda":
        raise ConfigError(
            f"profile {chosen.name} has no GPU for {kind}",
            where="engine.library",
            fix="choose the rtx profile, or leave engine.library out",
        )
    store = store or PlanStore(plan_folder(), config.storage.plans_max_mb * 10**6)
    wanted = wanted_plan(config, bundle, facts, (ask or ask_library)(kind))
    plans = store.plans()
    damaged = ""
    while True:
        choice = choose_plan(wanted, plans)
        reason = damaged or choice.reason
        if choice.plan is None or choice.identity is None:
            return replace(plain, degraded=f"{reason}; ONNX Runtime runs meanwhile", builds=True)
        try:
            identity, plan = read_plan(choice.plan, choice.identity)
        except ModelError as error:
            log.warning("%s", error)
            damaged = damaged or str(error)
            plans = [entry for entry in plans if entry[0] != choice.plan]
            continue
        request = replace(
            plain.request,
            plan=plan,
            precision=identity.precision,
            runtime_cache=choice.plan.with_suffix(KERNELS_SUFFIX) if kind == "tensorrt_rtx" else None,
        )
        return EngineStart(_ENGINES[kind], request, reason, builds=choice.builds, plan_path=choice.plan)


def open_started(start: EngineStart, chosen: Profile, device: Device[object]) -> tuple[Engine[object], EngineStart]:
    """Open what was decided. A plan that its library refuses is removed, and gives way to the profile's own engine.

    Raises what the factories raise.
    """
    try:
        return ENGINES.get(start.engine)(start.request, device), start
    except ModelError as error:
        if not start.request.plan:
            raise
        log.warning("%s; ONNX Runtime takes its place", error)
        if start.plan_path is not None:
            with contextlib.suppress(OSError):  # a store that may only be read: then it is built in vain, once
                start.plan_path.unlink(missing_ok=True)
        request = replace(start.request, plan=b"", precision="", runtime_cache=None)
        instead = EngineStart(chosen.engine, request, f"{error}; ONNX Runtime runs meanwhile", builds=True)
        return ENGINES.get(instead.engine)(request, device), instead


def wanted_plan(config: Config, bundle: Bundle, facts: ModelFacts, library: LibraryFacts) -> PlanIdentity:
    """The plan that the configuration asks for on this machine."""
    return identity_of(
        facts, config.engine.library, library, _precision(config, bundle), workspace_mib=config.engine.workspace_mib
    )


def build_request(config: Config, bundle: Bundle, batch: int) -> BuildRequest:
    """The build of that plan, by a process that gives way to the frame path."""
    return BuildRequest(
        bundle=str(bundle.folder),
        engine=config.engine.library,
        precision=_precision(config, bundle),
        batch=batch,
        workspace_mib=config.engine.workspace_mib,
        is_nice=True,
    )


def _precision(config: Config, bundle: Bundle) -> str:
    """By the manifest, so that a start needs no package that reads graphs."""
    if config.engine.precision != "auto":
        return config.engine.precision
    return "int8" if bundle.quantisation else "fp16"


def ask_library(kind: str) -> LibraryFacts:
    """Version and GPU, found out by a child process: a broken library takes nobody along."""
    with BuildProcess(kind) as process:
        return process.facts()
