"""The bundled model in int8 by the default settings: as good on frames that it was not calibrated with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.test_reference_clip import load_reference, matches
from zhcedge.app.channels import clip_path
from zhcedge.app.model_eval import EvalRequest, eval_model
from zhcedge.app.model_quantize import QuantizeRequest, quantize_model
from zhcedge.app.progress import Progress
from zhcedge.core.types import DetectionArray
from zhcedge.models.bundle import load_bundle

BUNDLE = "nanodet-g-416"


class Nowhere:
    """A stream that is no terminal."""

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None: ...


def against_reference(found: dict[int, DetectionArray], labels: tuple[str, ...]) -> tuple[float, float]:
    """Recall and share of extra boxes, counted as tests/parity/test_reference_clip.py does."""
    wanted = got = matched = 0
    for number, expected in load_reference().items():
        boxes = [(labels[int(one["label"])], tuple(map(float, one["box"]))) for one in found[number]]
        wanted, got = wanted + len(expected), got + len(boxes)
        matched += matches(expected, boxes)
    return matched / wanted, (got - matched) / got


@pytest.mark.slow
@pytest.mark.company
def test_int8_by_the_default_settings_loses_next_to_nothing(tmp_path: Path) -> None:
    clip, progress, out = clip_path("walkers"), Progress(Nowhere()), tmp_path / "int8"  # type: ignore[arg-type]
    # Of 300 frames 120, evenly spread, are numbers 1, 3, 6, 8, 11, ...; every fifth one is none of them.
    quantize_model(QuantizeRequest(BUNDLE, str(out), video=clip, frames=120), progress, pytest.fail)
    report = eval_model(EvalRequest(str(out), against=BUNDLE, video=clip, frames=60), progress, pytest.fail)
    assert (report.frames, report.excluded) == (60, 0)
    assert report.agreement is not None
    labels = load_bundle(BUNDLE).facts.labels
    before, after = (against_reference(dict(found), labels) for found in (report.against_found, report.found))
    print(f"{report.agreement.as_dict()}, recall and extra against the reference {before}, in int8 {after}")
    assert report.agreement.ap50 >= 0.98
    assert after[0] >= before[0] - 0.01
    assert after[1] <= before[1] + 0.01
