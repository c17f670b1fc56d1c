"""Use case `model import`: from an ONNX file or a checkpoint to a bundle that was seen to work on a picture."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from zhcedge import __version__
from zhcedge.app.channels import clip_path
from zhcedge.app.model_export import SUFFIXES, export_checkpoint
from zhcedge.app.model_trial import CLIP_FRAME, Trial, try_model
from zhcedge.backends.engines.probe import ModelProbe, ProbedOutput
from zhcedge.core.errors import ModelError, OutputError, PipelineError, UsageError
from zhcedge.core.printing import printable
from zhcedge.core.types import HeadKind, ModelFacts
from zhcedge.models.bundle import file_sha256, load_bundle
from zhcedge.models.head_guess import NAMES, HeadGuess, chosen_head, guess_head
from zhcedge.models.labels import labels_of_option
from zhcedge.models.library import embedded_bundles, search_folders
from zhcedge.models.manifest import NAME_PATTERN
from zhcedge.models.onnx_import import Candidate, read_candidate
from zhcedge.models.write import NewBundle, bundle_in_progress, put_in_place

HEADS = tuple(NAMES)
_MAX_TEXT = 1000
_TOO_NEW = ("IR version", "opset", "is not a registered", "No Op registered", "NOT_IMPLEMENTED")
"""What ONNX Runtime says of a graph from after its time."""

_FLOATS = ("float32", "float16")


@dataclass(frozen=True)
class ImportRequest:
    """What to import and what is known better than the file says.

    Attributes:
        file: an ONNX file, or a checkpoint of ultralytics.
        name: of the bundle; empty makes one of the file's name.
        labels: a file with one label a line, or a list with commas; empty takes those of the metadata.
        size_px: (width, height) of the input.
        head: one of HEADS; empty finds it out.
        output: name of the graph's output; empty takes the only one that fits.
        folder: that gets the bundle; None for the first of those that names are searched in.
        test: image to try it on; None takes a frame of the bundled clip.
        score, nms_iou: the bundle's thresholds, 0..1.
        scale: from 0..255 to what the graph expects. is_bgr: blue first. pad: 0..255 around the picture.
        licence: of the model; empty takes the metadata's.
        replaces: an older bundle of that name may go.
    """

    file: Path
    name: str = ""
    labels: str = ""
    size_px: tuple[int, int] | None = None
    head: str = ""
    output: str = ""
    folder: Path | None = None
    test: Path | None = None
    score: float = 0.25
    nms_iou: float = 0.5
    scale: float = 1 / 255
    is_bgr: bool = False
    pad: int = 114
    licence: str = ""
    replaces: bool = False


@dataclass(frozen=True)
class ImportReport:
    """What was imported. `said` is how each fact was found, in lines for people."""

    facts: ModelFacts
    folder: Path
    drawing: Path
    licence: str
    said: tuple[str, ...]
    trial: Trial


def import_model(request: ImportRequest, tell: Callable[[str], None] = lambda line: None) -> ImportReport:
    """Import a model. Blocks: seconds, minutes for a checkpoint.

    Args:
        tell: gets a line for each fact as soon as it is known.

    Raises UsageError for a name that can't be one, ModelError for what can't be imported, BackendUnavailableError for
    a package that is missing, OutputError where the bundle can't be written. Then nothing is left behind.
    """
    name = _bundle_name(request)
    parent = request.folder or search_folders()[0]
    target = parent / name
    if target.exists() and not request.replaces:
        raise OutputError("there is a bundle of that name", where=str(target), fix="add --replace or give a --name")
    with tempfile.TemporaryDirectory(prefix="zhc-edge-") as work:
        path = request.file
        if path.suffix.lower() in SUFFIXES:
            path = export_checkpoint(path, request.size_px, Path(work))
        said: list[str] = []

        def say(line: str) -> None:
            said.append(line)
            tell(line)

        candidate = read_candidate(path)
        facts = _facts(candidate, request, name, say)
        licence = _short(request.licence or candidate.file.metadata.get("license", "") or "unknown: ask its author")
        say(f"licence: {licence}")
        new = NewBundle(
            facts,
            path,
            candidate.data_files,
            licence,
            _source(request, candidate),
            _notice(request, candidate, licence),
        )
        with bundle_in_progress(new, parent) as folder:
            drawing = parent / f"{name}.jpg"
            picture, frame = (request.test, 0) if request.test else (clip_path("walkers"), CLIP_FRAME)
            trial = try_model(load_bundle(folder), picture, frame=frame, drawing=drawing)
            try:
                put_in_place(folder, target)
            except OutputError:
                drawing.unlink(missing_ok=True)
                raise
    return ImportReport(load_bundle(target).facts, target, drawing, licence, tuple(said), trial)


def _bundle_name(request: ImportRequest) -> str:
    name = request.name or re.sub(r"[^a-z0-9.]+", "-", request.file.stem.lower()).strip("-.")[:63] or "model"
    if not re.fullmatch(NAME_PATTERN, name):
        raise UsageError(
            f"{name!r} can't be a bundle's name", fix="use lower-case letters, digits, '-' and '.', 63 at most"
        )
    if name in embedded_bundles():
        raise UsageError(f"{name!r} is the name of a built-in bundle", fix="give another --name")
    return name


def _facts(candidate: Candidate, request: ImportRequest, name: str, say: Callable[[str], None]) -> ModelFacts:
    size, why_size = candidate.choose_size(request.size_px)
    labels = labels_of_option(request.labels) if request.labels else candidate.labels
    probe = _open_probe(candidate)
    batch = candidate.batch or 1
    shape = (batch, 3, size[1], size[0])
    outputs = _probe(probe, candidate, shape)
    guess, output = _head(outputs, candidate, request, size, None if labels is None else len(labels))
    classes = "" if guess.classes is None else f"{guess.classes} classes, "
    say(f"head: {guess.name}, {classes}{guess.anchors} anchors, because {guess.reason}")
    labels = _checked_labels(labels, guess, request)
    say(f"labels: {len(labels)} from {'--labels' if request.labels else 'the metadata'}: {_few(labels)}")
    has_free_batch = candidate.batch is None and _takes_two(probe, candidate, shape, output)
    takes = "any batch" if has_free_batch else f"batches of {batch}"
    picture = f"{size[0]}x{size[1]} pixels, because {why_size}"
    say(f"input: {candidate.input_name}, {picture}; {candidate.input_dtype}, {takes}")
    order = "BGR" if request.is_bgr else "RGB"
    say(f"pixels: {order}, 0 to {255 * request.scale:g}, border {request.pad}; --scale, --bgr and --pad change it")
    return ModelFacts(
        name=name,
        sha256="",
        labels=labels,
        input_name=candidate.input_name,
        output_name=output.name,
        input_shape=shape,
        output_shape=(batch, output.shape[1], output.shape[2]),
        scale=request.scale,
        pad_value=request.pad,
        head=guess.head,
        score_threshold=request.score,
        nms_iou=request.nms_iou,
        has_free_batch=has_free_batch,
        input_dtype=candidate.input_dtype,
        output_dtype=output.dtype,
        is_bgr=request.is_bgr,
    )


def _open_probe(candidate: Candidate) -> ModelProbe:
    try:
        return ModelProbe(candidate.path)
    except ModelError as error:
        file = candidate.file
        if file.foreign:
            raise ModelError(
                f"has operators that only its maker knows: {', '.join(file.foreign)}",
                where=error.where,
                fix="export the model without them, such as without NMS inside",
            ) from error
        is_too_new = any(words in error.what for words in _TOO_NEW)
        raise ModelError(
            f"{error.what} (IR version {file.ir_version}, opset {file.opset}, by {file.producer or 'somebody'})",
            where=error.where,
            fix="export it with an older opset, such as 17, or install a newer onnxruntime"
            if is_too_new
            else "export the model again",
        ) from error


def _probe(probe: ModelProbe, candidate: Candidate, shape: tuple[int, int, int, int]) -> tuple[ProbedOutput, ...]:
    try:
        return probe.run(candidate.input_name, shape, candidate.input_dtype)
    except PipelineError as error:
        raise ModelError(
            f"does not run on {shape[3]}x{shape[2]} pixels: {error.what}",
            where=str(candidate.path),
            fix="name the size that it was made for with --size, or a multiple of 32",
        ) from error


def _takes_two(probe: ModelProbe, candidate: Candidate, shape: tuple[int, int, int, int], output: ProbedOutput) -> bool:
    """Whether a batch that the graph leaves open really is: exports exist whose inside is made for one picture."""
    declared = next(value for value in candidate.file.outputs if value.name == output.name)
    if declared.shape and declared.shape[0] is not None:
        return False
    try:
        outputs = probe.run(candidate.input_name, (2, *shape[1:]), candidate.input_dtype)
    except PipelineError:
        return False
    return any(found.name == output.name and found.shape == (2, *output.shape[1:]) for found in outputs)


def _head(
    outputs: tuple[ProbedOutput, ...],
    candidate: Candidate,
    request: ImportRequest,
    size: tuple[int, int],
    labels: int | None,
) -> tuple[HeadGuess, ProbedOutput]:
    where = str(candidate.path)
    output = _only_output(outputs, request, where)
    shape = (output.shape[0], output.shape[1], output.shape[2])
    try:
        if request.head:
            return chosen_head(NAMES[request.head], shape), output
        guess = guess_head(shape, size, candidate.file.operators, labels, selects=candidate.selects)
    except ModelError as error:
        given = "" if labels is None else f" ({labels} labels are known)"
        raise ModelError(f"{error.what}{given}", where=where, fix=error.fix) from error
    return guess, output


def _only_output(outputs: tuple[ProbedOutput, ...], request: ImportRequest, where: str) -> ProbedOutput:
    shown = ", ".join(f"{output.name} {output.dtype} {list(output.shape)}" for output in outputs)
    named = [output for output in outputs if output.name == request.output] if request.output else list(outputs)
    fitting = [output for output in named if len(output.shape) == 3 and output.dtype in _FLOATS]
    if len(fitting) == 1:
        # The second output of a segmentation model: 32 masks that every box is made of.
        if not request.output and any(len(output.shape) == 4 for output in outputs):
            raise ModelError(
                f"gives {shown}: boxes and masks, as a segmentation model does; zhc-edge runs detectors only",
                where=where,
                fix="import a detection model, or name the boxes with --output",
            )
        return fitting[0]
    if len(fitting) > 1:
        raise ModelError(
            f"has several outputs that could hold boxes: {shown}", where=where, fix="name one with --output"
        )
    if any(len(output.shape) == 2 for output in outputs):
        raise ModelError(f"gives {shown}, as a classifier does; zhc-edge runs detectors only", where=where)
    raise ModelError(f"has no output of boxes, [batch, a, b]: {shown}", where=where, fix="import a YOLO detector")


def _checked_labels(labels: tuple[str, ...] | None, guess: HeadGuess, request: ImportRequest) -> tuple[str, ...]:
    where = request.labels or str(request.file)
    if labels is None:
        count = "its" if guess.classes is None else f"its {guess.classes}"
        raise ModelError(
            f"the model carries no usable names of {count} classes",
            where=where,
            fix="give them with --labels FILE or a,b,c",
        )
    if guess.classes not in (None, len(labels)):
        raise ModelError(
            f"{len(labels)} labels, but the model has {guess.classes} classes (head {guess.name})",
            where=where,
            fix="give one label for each class with --labels, or another --head",
        )
    if guess.head is HeadKind.END_TO_END and len(labels) > 1000:
        raise ModelError(f"{len(labels)} labels are more than 1000", where=where, fix="check the file of labels")
    return labels


def _source(request: ImportRequest, candidate: Candidate) -> str:
    made = candidate.file.metadata.get("description", "") or candidate.file.producer
    digest = file_sha256(request.file.resolve())
    return _short(
        f"{request.file.name} (sha256 {digest}), {made or 'no description'}; imported by zhc-edge {__version__}"
    )


def _notice(request: ImportRequest, candidate: Candidate, licence: str) -> str:
    keys = ("description", "author", "docs", "version", "date")
    lines = [f"Imported from {_short(request.file.name)} by zhc-edge {__version__}.", f"Licence: {licence}"]
    lines += [f"{key}: {_short(candidate.file.metadata[key])}" for key in keys if candidate.file.metadata.get(key)]
    return "\n".join(lines) + "\n"


def _few(labels: tuple[str, ...]) -> str:
    return ", ".join(labels[:3]) + (", ..." if len(labels) > 3 else "")


def _short(text: str) -> str:
    """One printable line that a manifest takes."""
    return printable(" ".join(text.split()))[:_MAX_TEXT] or "unknown"
