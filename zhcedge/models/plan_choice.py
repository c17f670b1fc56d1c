"""What a start does about its plan: load one, or go on with something else while one is built. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zhcedge.models.plans import PlanIdentity

_RUN_BY = ("model", "engine", "version", "platform")


@dataclass(frozen=True)
class Choice:
    """What to run now, and whether to build.

    Attributes:
        plan: to load now; None runs the model without one, by ONNX Runtime.
        identity: of that plan.
        builds: the wanted plan is to be built meanwhile, and the state is `degraded` until it is there.
        reason: why, for people; empty when nothing is wrong.
    """

    plan: Path | None
    identity: PlanIdentity | None
    builds: bool
    reason: str = ""


def choose_plan(wanted: PlanIdentity, plans: Sequence[tuple[Path, PlanIdentity]]) -> Choice:
    """Choose among the plans of a store, best first.

    A plan that is what is wanted is loaded, and nothing is built. Else an older one that still runs here serves
    meanwhile: same model, library, version and platform, this GPU among its targets, the wanted batch or a larger one
    and the same picture size; its precision, workspace and recipe may differ. Else there is no plan to run.
    """
    for path, identity in plans:
        if not identity.differences(wanted):
            return Choice(path, identity, builds=False)
    for path, identity in plans:
        if runs_as(identity, wanted):
            why = "; ".join(identity.differences(wanted))
            return Choice(path, identity, builds=True, reason=f"an older plan runs meanwhile ({why})")
    same = [identity for _, identity in plans if identity.model == wanted.model]
    why = "; ".join(same[0].differences(wanted)) if same else "none was built yet"
    return Choice(None, None, builds=True, reason=f"no plan of {wanted.name} runs here ({why})")


def runs_as(identity: PlanIdentity, wanted: PlanIdentity) -> bool:
    """Whether a plan gives the wanted model's boxes on this machine, if not as fast or as exactly."""
    return (
        all(getattr(identity, name) == getattr(wanted, name) for name in _RUN_BY)
        and set(wanted.targets) <= set(identity.targets)
        and identity.input_shape[1:] == wanted.input_shape[1:]
        and identity.input_shape[0] >= wanted.input_shape[0]
    )
