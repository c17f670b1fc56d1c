"""Use cases `model ls`, `model show` and `model verify`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zhcedge.app.channels import clip_path
from zhcedge.app.model_trial import CLIP_FRAME, Trial, try_model
from zhcedge.core.errors import ModelError
from zhcedge.models.bundle import Bundle, load_bundle
from zhcedge.models.head_guess import name_of
from zhcedge.models.library import all_bundles, search_folders


@dataclass(frozen=True)
class Listed:
    """A bundle by name; `problem` says why it can't be used, and then `bundle` is None."""

    name: str
    folder: Path
    is_embedded: bool
    bundle: Bundle | None
    problem: str = ""

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        data: dict[str, object] = {"name": self.name, "folder": str(self.folder), "built_in": self.is_embedded}
        if self.bundle is None:
            return {**data, "problem": self.problem}
        facts = self.bundle.facts
        return {
            **data,
            "head": name_of(facts.head),
            "classes": len(facts.labels),
            "width": facts.input_shape[3],
            "height": facts.input_shape[2],
            "licence": self.bundle.licence,
        }


def list_models() -> list[Listed]:
    """Every bundle that a name leads to, verified. A broken one is listed with what is wrong with it."""
    listed = []
    for entry in all_bundles():
        try:
            bundle, problem = load_bundle(entry.folder), ""
        except ModelError as error:
            bundle, problem = None, str(error)
        listed.append(Listed(entry.name, entry.folder, entry.is_embedded, bundle, problem))
    return listed


def folders() -> tuple[Path, ...]:
    """Where bundles are searched by name, besides the built-in ones."""
    return search_folders()


def show_model(name_or_path: str) -> dict[str, object]:
    """All that is known of a bundle, for JSON. Verifies it; raises ModelError."""
    bundle = load_bundle(name_or_path)
    facts = bundle.facts
    batch: int | str = "any" if facts.has_free_batch else facts.input_shape[0]
    return {
        "name": facts.name,
        "folder": str(bundle.folder),
        "head": name_of(facts.head),
        "classes": len(facts.labels),
        "anchors": facts.anchors,
        "batch": batch,
        "width": facts.input_shape[3],
        "height": facts.input_shape[2],
        "input": {
            "name": facts.input_name,
            "dtype": facts.input_dtype,
            "colour": "bgr" if facts.is_bgr else "rgb",
            "scale": facts.scale,
            "pad": facts.pad_value,
        },
        "output": {"name": facts.output_name, "dtype": facts.output_dtype, "shape": [batch, *facts.output_shape[1:]]},
        "score_threshold": facts.score_threshold,
        "nms_iou": facts.nms_iou,
        "licence": bundle.licence,
        "source": bundle.source,
        "precision": bundle.precision,
        "quantisation": {} if bundle.quantisation is None else bundle.quantisation.model_dump(mode="json"),
        "files": {
            name: {"bytes": (bundle.folder / name).stat().st_size, "sha256": digest}
            for name, digest in sorted(bundle.sha256.items())
        },
        "labels": list(facts.labels),
    }


def verify_model(name_or_path: str, profile: str = "cpu", test: Path | None = None) -> tuple[Bundle, Trial]:
    """Hash every file, check the manifest, load the model in the profile's engine and run it on a picture.

    Args:
        test: image to run it on; None takes a frame of the bundled clip.

    Raises ModelError and what the profile's backends raise.
    """
    bundle = load_bundle(name_or_path)
    picture, frame = (test, 0) if test else (clip_path("walkers"), CLIP_FRAME)
    return bundle, try_model(bundle, picture, profile_name=profile, frame=frame)
