"""Use case `model quantize`: a bundle of single precision to one with int8 Q/DQ pairs, by pictures of its own kind."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from zhcedge import __version__
from zhcedge.app.channels import clip_path
from zhcedge.app.frame_set import Complain, FrameSet, frames_of_pictures, frames_of_video
from zhcedge.app.model_trial import CLIP_FRAME, try_model
from zhcedge.app.progress import Progress
from zhcedge.backends.registry import DEVICES
from zhcedge.core.errors import OutputError, PipelineError, UsageError
from zhcedge.core.files import write_whole
from zhcedge.core.requests import DeviceSettings
from zhcedge.core.types import ModelFacts, Tensor
from zhcedge.models.bundle import Bundle, load_bundle
from zhcedge.models.calibration import Method, Sample, Samples, check_count
from zhcedge.models.graph import PARTS
from zhcedge.models.library import SYSTEM_FOLDER, embedded_bundles, search_folders
from zhcedge.models.manifest import NAME_PATTERN, QuantisationFacts
from zhcedge.models.quantize import TABLE_NAME, collect, correction_count, open_float_model, quantise
from zhcedge.models.write import NewBundle, bundle_in_progress, put_in_place

METHODS = tuple(method.value for method in Method)
FLOAT_PARTS = PARTS
DEFAULT_METHOD = Method.L4.value
DEFAULT_FRAMES = 200
_MAX_TEXT = 1000
_PATIENCE_S = 300.0


@dataclass(frozen=True)
class QuantizeRequest:
    """What to quantise.

    Attributes:
        bundle: a name or a folder.
        out: the new bundle: a name, for the folder that names are searched in, or the path of its folder.
        images, video: a folder of pictures or a video to calibrate with; exactly one.
        method: one of METHODS.
        frames: most frames to look at, evenly spread; 0 for all.
        float_parts: what stays in floating point besides the head; of FLOAT_PARTS.
        corrects_biases: make up for the mean error of each layer in its biases.
        replaces: an older bundle there may go.
    """

    bundle: str
    out: str
    images: Path | None = None
    video: Path | None = None
    method: str = DEFAULT_METHOD
    frames: int = DEFAULT_FRAMES
    float_parts: tuple[str, ...] = ()
    corrects_biases: bool = True
    replaces: bool = False


@dataclass(frozen=True)
class QuantizeReport:
    """What was made. `pairs` counts the nodes whose inputs are quantised, `excluded` names the layers left out."""

    name: str
    folder: Path
    method: str
    frames: int
    data_sha256: str
    pairs: int
    excluded: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "name": self.name,
            "folder": str(self.folder),
            "precision": "int8-qdq",
            "method": self.method,
            "frames": self.frames,
            "data_sha256": self.data_sha256,
            "quantised": self.pairs,
            "excluded": list(self.excluded),
        }


def quantize_model(request: QuantizeRequest, progress: Progress, complain: Complain) -> QuantizeReport:
    """Quantise a bundle. Blocks: half a minute for a small model and 200 frames.

    Args:
        complain: told of what is odd, such as too few pictures.

    Raises UsageError for wishes that make no sense; ModelError for a model that can't be quantised or too few pictures;
    SourceMissingError or MediaError for pictures that can't be read; BackendUnavailableError for a package that is
    missing; OutputError where the bundle can't be written. Then nothing is left behind.
    """
    method = _check(request)
    target = _target(request)
    bundle = load_bundle(request.bundle)
    model = open_float_model(bundle.model_path)
    wanted = chosen_frames(request.images, request.video).spread(request.frames)
    if warning := check_count(len(wanted), str(request.images or request.video)):
        complain(warning)
    try:
        samples = feed(wanted, bundle.facts, complain)
        progress.begin("calibrating", len(wanted))
        collected = collect(model, samples, request.float_parts, progress.advance)
        calibration = collected.calibrate(method)
        progress.begin("correcting biases", correction_count(len(wanted)) * request.corrects_biases)
        corrected = feed(wanted, bundle.facts, lambda line: None) if request.corrects_biases else None
        quantised = quantise(collected, calibration, corrected, progress.advance)
    finally:
        progress.clear()
    with tempfile.TemporaryDirectory(prefix="zhc-edge-") as work:
        path = Path(work) / "model.onnx"
        quantised.save(path)
        write_whole(Path(work) / TABLE_NAME, calibration.as_json().encode(), "the calibration table")
        facts = QuantisationFacts(
            precision="int8-qdq",
            method=method.value,
            table=TABLE_NAME,
            data_sha256=calibration.data_sha256,
            frames=len(calibration.digests),
            corrects_biases=request.corrects_biases,
            excluded=collected.sites.excluded,
        )
        new = _new_bundle(bundle, target.name, path, Path(work) / TABLE_NAME, facts)
        with bundle_in_progress(new, target.parent) as folder:
            try_model(load_bundle(folder), clip_path("walkers"), frame=CLIP_FRAME)
            put_in_place(folder, target)
    return QuantizeReport(
        target.name,
        target,
        method.value,
        len(calibration.digests),
        calibration.data_sha256,
        len(collected.sites.nodes),
        collected.sites.excluded,
    )


def chosen_frames(images: Path | None, video: Path | None) -> FrameSet:
    """Frames of one of the two. Raises UsageError for none or both, SourceMissingError or MediaError."""
    if (images is None) == (video is None):
        raise UsageError("pictures come from one place", fix="give either --images DIR or --video FILE")
    if video is not None:
        return frames_of_video(video)
    from zhcedge.media.images import list_images  # Pillow is loaded for pictures only

    folder = images or Path()
    return frames_of_pictures(list_images(folder, str(folder)))


def feed(frames: FrameSet, facts: ModelFacts, complain: Complain) -> Samples:
    """The port that calibration reads: frames through the product's own decoder and letterbox, on the CPU."""

    def samples() -> Iterator[Sample]:
        from zhcedge.backends.cpu.arena import CpuBuffer, tensor_array  # needs PyAV

        device = DEVICES.get("cpu")(DeviceSettings())
        try:
            lane = device.create_lane(0, facts)
            program = device.compile([device.preprocess(lane, facts)], lane, 1)
            for frame in frames.frames(device, complain):
                if not program.launch([frame.slot]).wait(_PATIENCE_S):
                    raise PipelineError(f"a frame is not scaled after {_PATIENCE_S:.0f} s", where=frame.name)
                values = tensor_array(cast("Tensor[CpuBuffer]", lane.input))
                # A graph with a fixed batch gets the same picture everywhere.
                yield Sample(frame.digest, np.repeat(values[:1], len(values), axis=0))
        finally:
            device.close()

    return samples


def _check(request: QuantizeRequest) -> Method:
    if request.method not in METHODS:
        raise UsageError(f"no method is called {request.method!r}", fix=f"choose one of {', '.join(METHODS)}")
    unknown = sorted(set(request.float_parts) - set(FLOAT_PARTS))
    if unknown:
        raise UsageError(f"no part is called {', '.join(unknown)}", fix=f"choose of {', '.join(FLOAT_PARTS)}")
    return Method(request.method)


def _target(request: QuantizeRequest) -> Path:
    """Where the bundle goes. Raises UsageError for a name that can't be one, OutputError for one that is taken."""
    path = Path(request.out)
    if re.fullmatch(NAME_PATTERN, request.out):
        path = (SYSTEM_FOLDER if os.geteuid() == 0 else search_folders()[0]) / request.out
    if not re.fullmatch(NAME_PATTERN, path.name):
        raise UsageError(
            f"{path.name!r} can't be a bundle's name", fix="use lower-case letters, digits, '-' and '.', 63 at most"
        )
    if path.name in embedded_bundles():
        raise UsageError(f"{path.name!r} is the name of a built-in bundle", fix="give another --out")
    if path.exists() and not request.replaces:
        raise OutputError("there is something of that name", where=str(path), fix="add --replace, or another --out")
    return path


def _new_bundle(bundle: Bundle, name: str, model: Path, table: Path, facts: QuantisationFacts) -> NewBundle:
    notice = bundle.notice_path.read_text(encoding="utf-8").rstrip("\n")
    made = f"quantised to int8 by zhcedge {__version__} from {bundle.facts.name} ({bundle.facts.sha256[:12]})"
    return NewBundle(
        facts=replace(bundle.facts, name=name),
        model_path=model,
        data_files=(table,),
        licence=bundle.licence,
        source=f"{bundle.source}; {made}"[:_MAX_TEXT],
        notice=f"{notice}\n\nChanged: {made}; method {facts.method}, {facts.frames} pictures.\n",
        quantisation=facts,
    )
