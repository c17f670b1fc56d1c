"""`zhc-edge model ls|show|import|verify`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from zhcedge.cli.arguments import whole_number
from zhcedge.cli.model_quality import add_eval, add_quantize
from zhcedge.core.printing import printable

if TYPE_CHECKING:
    from zhcedge.app.model_trial import Trial

_HEADS = """\
heads (--head):
  yolov8             [batch, 4 + classes, anchors]: YOLOv8, 9, 11, 12, NanoDet
  yolov8-transposed  [batch, anchors, 4 + classes]
  yolov5             [batch, anchors, 5 + classes], with an objectness: YOLOv5, 6, 7, decoded YOLOX
  yolov5-transposed  [batch, 5 + classes, anchors]
  end2end            [batch, boxes, 6]: YOLOv10, YOLO26, and exports with NMS inside

A model that is not a detector (classes, masks, poses) is refused. Where the head can't be told from the graph, the
command says what it could be and wants --head.

A .pt file holds a program that runs when it is loaded: import only those that you trust.
"""


_FOLDERS = """\
A name is searched among the built-in bundles, then in $XDG_DATA_HOME/zhcedge/models where that variable is set, else
in ~/.local/share/zhcedge/models, and then in /var/lib/zhc-edge/models; root without XDG_DATA_HOME looks into the last
one first. Without --out, import writes to the first of these folders."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `model` and its four actions."""
    parser = subparsers.add_parser(
        "model",
        help="list, show, import and verify model bundles",
        description="A bundle is a folder with a model, its labels, what must be known to run it, its licence and a "
        "hash of every file. Its name, or the path of its folder, is what model.bundle takes in a configuration.",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)

    ls = actions.add_parser("ls", help="list the bundles that a name leads to", description=_FOLDERS)
    ls.add_argument("--json", action="store_true", help="print a JSON list")
    ls.set_defaults(run=_ls)

    show = actions.add_parser("show", help="show a bundle's facts, licence, hashes and sizes")
    show.add_argument("name", metavar="NAME", help="a bundle's name, or the path of its folder")
    show.add_argument("--json", action="store_true", help="print one JSON object, with all labels")
    show.set_defaults(run=_show)

    _add_import(actions)

    _add_build(actions)
    add_quantize(actions)
    add_eval(actions)

    verify = actions.add_parser(
        "verify",
        help="check a bundle's hashes, load it and run it",
        description="Hashes every file, checks the manifest, loads the model in the engine and runs it on a picture.",
    )
    verify.add_argument("name", metavar="NAME", help="a bundle's name, or the path of its folder")
    verify.add_argument("--profile", default="cpu", help="set of backends to run it with (%(default)s)")
    verify.add_argument("--test", type=Path, metavar="IMAGE", help="picture to run it on; default: a bundled one")
    verify.add_argument("--json", action="store_true", help="print one JSON object")
    verify.set_defaults(run=_verify)
    for action in actions.choices.values():  # as every command takes it, also after the action's own words
        action.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks of errors")


def _add_import(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "import",
        help="make a bundle of an ONNX file, or of an ultralytics checkpoint",
        description="Finds out how the model is to be run and says it, writes a bundle, and runs it on a picture with\n"
        "the boxes drawn: look at it. Warns when nothing is found or the boxes make no sense. Needs zhcedge[models].\n"
        "\n" + _FOLDERS,
        epilog=_HEADS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="an .onnx file, or a .pt file where ultralytics is installed")
    add("--name", default="", help="of the bundle; default: made of the file's name")
    add("--labels", default="", metavar="FILE|a,b,c", help="class names; default: those of the file's metadata")
    add(
        "--size", type=_size, metavar="WxH", help="input in pixels, such as 640 or 640x384; default: what the file says"
    )
    add("--head", default="", metavar="KIND", help="how the output is read, see below; default: found out")
    add(
        "--output",
        default="",
        metavar="NAME",
        help="the graph's output with the boxes; default: the only one that fits",
    )
    add("--out", type=Path, metavar="DIR", help="folder for the bundle; default: the first that names are searched in")
    add("--test", type=Path, metavar="IMAGE", help="picture to run it on; default: a bundled one")
    add("--score", type=_fraction, default=0.25, metavar="X", help="lowest score of a detection (%(default)s)")
    add("--nms-iou", type=_fraction, default=0.5, metavar="X", help="overlap that makes two boxes one (%(default)s)")
    add(
        "--scale",
        type=_scale,
        default=1 / 255,
        metavar="X",
        help="factor on 0..255, such as 1 or 1/255; default: 1/255",
    )
    add("--bgr", action="store_true", help="the model wants blue first")
    add("--pad", type=int, choices=range(256), default=114, metavar="N", help="grey around the picture (%(default)s)")
    add("--licence", default="", metavar="TEXT", help="of the model; default: the metadata's")
    add("--replace", action="store_true", help="replace an older bundle of that name")
    add("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_import)


def _add_build(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "build",
        help="build a TensorRT plan of a bundle",
        description="Builds the plan that a TensorRT engine runs, in a process of its own, and keeps it: a second time "
        "there is nothing to build. TensorRT builds for the GPU of this machine; TensorRT for RTX builds for any of "
        "sm75, sm80, sm86, sm89, sm120 and sm121, with no GPU here. Needs zhcedge[models] and one of the two.",
    )
    add = parser.add_argument
    add("name", metavar="BUNDLE", help="a bundle's name, or the path of its folder")
    add("--engine", choices=("tensorrt", "tensorrt_rtx"), default="", help="library; default: the installed one")
    add("--precision", choices=("int8", "fp16", "fp32"), default="", help="default: int8 if quantised, else fp16")
    add("--batch", type=_count, default=0, metavar="N", help="largest batch; default: the bundle's own")
    add("--target", type=_targets, default=(), metavar="sm86,...", help="GPUs to build for; default: the one here")
    add("--workspace", type=_count, default=512, metavar="MIB", help="scratch memory of a kernel (%(default)s)")
    add("--memory", type=_count, default=0, metavar="MIB", help="stop a build that takes more; default: what is free")
    add("--out", type=Path, metavar="FILE", help="write the plan there instead of keeping it for the next start")
    add("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_build)


def _build(arguments: argparse.Namespace) -> int:
    from zhcedge.app.model_build import BuildRequest, build_model
    from zhcedge.app.progress import Progress

    progress = Progress(sys.stderr)
    shown = 0

    def report(share: float, what: str) -> None:
        nonlocal shown
        if not shown:
            progress.begin("building", 1000)
        done = round(share * 1000)
        progress.advance(max(done - shown, 0))
        shown = max(done, shown, 1)

    request = BuildRequest(
        bundle=arguments.name,
        engine=arguments.engine,
        precision=arguments.precision,
        batch=arguments.batch,
        targets=arguments.target,
        workspace_mib=arguments.workspace,
        memory_mib=arguments.memory,
        out=arguments.out,
    )
    try:
        built = build_model(request, report)
    finally:
        progress.clear()
    for warning in built.warnings:
        print(f"WARNING: {warning}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(built.as_dict(), indent=2))
        return 0
    found = built.identity
    word = "was there already" if built.was_there else "built"
    print(f"{found.name} {found.precision}, batch {found.input_shape[0]}, for {', '.join(found.targets)}: {word}")
    print(f"{found.engine} {found.version}, {built.size_bytes / 2**20:.1f} MiB")
    print(f"plan: {built.path}")
    return 0


def _count(text: str) -> int:
    return whole_number(text, 1, 1_000_000)


def _targets(text: str) -> tuple[str, ...]:
    return tuple(word.strip().lower() for word in text.split(",") if word.strip())


def _ls(arguments: argparse.Namespace) -> int:
    from zhcedge.app.model import folders, list_models

    rows = [listed.as_dict() for listed in list_models()]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return 0
    width = max(len(str(row["name"])) for row in rows)
    for row in rows:
        where = "built in" if row["built_in"] else row["folder"]
        if "problem" in row:
            _say(f"{row['name']:<{width}}  UNUSABLE: {row['problem']}")
        else:
            size = f"{row['width']}x{row['height']}"
            _say(f"{row['name']:<{width}}  {row['head']:<17}  {row['classes']:>4} classes  {size:<9}  {where}")
    _say(f"\nsearched: {', '.join(map(str, folders()))}", file=sys.stderr)
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from zhcedge.app.model import show_model

    shown = show_model(arguments.name)
    if arguments.json:
        print(json.dumps(shown, indent=2))
        return 0
    for key, value in _flat(shown):
        _say(f"{key:<24}  {value}")
    return 0


def _flat(values: dict[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """Leaves by dotted key; a list on one line."""
    rows: list[tuple[str, object]] = []
    for key, value in values.items():
        if isinstance(value, dict) and prefix != "files.":
            rows += _flat(value, f"{prefix}{key}.")
        elif isinstance(value, dict):
            rows.append((f"{prefix}{key}", "  ".join(f"{name} {detail}" for name, detail in value.items())))
        elif isinstance(value, list):
            rows.append((f"{prefix}{key}", ", ".join(map(str, value))))
        else:
            rows.append((f"{prefix}{key}", value))
    return rows


def _import(arguments: argparse.Namespace) -> int:
    from zhcedge.app.model_import import HEADS, ImportRequest, import_model
    from zhcedge.core.errors import UsageError

    if arguments.head and arguments.head not in HEADS:
        raise UsageError(f"no head is called {arguments.head!r}", fix=f"choose one of {', '.join(HEADS)}")
    request = ImportRequest(
        file=arguments.file,
        name=arguments.name,
        labels=arguments.labels,
        size_px=arguments.size,
        head=arguments.head,
        output=arguments.output,
        folder=arguments.out,
        test=arguments.test,
        score=arguments.score,
        nms_iou=arguments.nms_iou,
        scale=arguments.scale,
        is_bgr=arguments.bgr,
        pad=arguments.pad,
        licence=arguments.licence,
        replaces=arguments.replace,
    )
    report = import_model(request, lambda line: _say(line, file=sys.stderr if arguments.json else sys.stdout))
    _warn(report.trial)
    if arguments.json:
        data = {"name": report.facts.name, "folder": str(report.folder), "drawing": str(report.drawing)}
        print(json.dumps({**data, "licence": report.licence, "said": report.said, **_found(report.trial)}, indent=2))
        return 0
    _say(f"test picture: {_summary(report.trial)}")
    _say(f"bundle: {report.folder}")
    _say(f"LOOK AT {report.drawing}: are the boxes around the right things?")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from zhcedge.app.model import verify_model

    bundle, trial = verify_model(arguments.name, arguments.profile, arguments.test)
    _warn(trial)
    if arguments.json:
        print(json.dumps({"name": bundle.facts.name, "folder": str(bundle.folder), **_found(trial)}, indent=2))
        return 0
    print(f"{bundle.facts.name}: {len(bundle.sha256)} files have the hashes that the manifest says")
    print(f"runs in {trial.engine}, {trial.call_ms:.1f} ms for one picture")
    _say(f"test picture: {_summary(trial)}")
    return 0


def _warn(trial: Trial) -> None:
    for oddity in trial.oddities:
        _say(f"WARNING: {oddity}", file=sys.stderr)


def _say(text: str, file: TextIO | None = None) -> None:
    """A line for people. Bundles and graphs come from anywhere, so their texts may not reach a terminal as they are."""
    print(printable(text, keep="\n"), file=file or sys.stdout, flush=True)


def _summary(trial: Trial) -> str:
    counts = ", ".join(f"{count} {label}" for label, count in trial.counts.items())
    return f"{len(trial.boxes)} boxes: {counts}" if counts else "0 boxes"


def _found(trial: Trial) -> dict[str, object]:
    return {
        "engine": trial.engine,
        "call_ms": round(trial.call_ms, 3),
        "boxes": [{"label": label, "score": score, "box": list(box)} for label, score, box in trial.boxes],
        "counts": trial.counts,
        "warnings": list(trial.oddities),
    }


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.lower().partition("x")
    return int(width), int(height or width)


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError
    return value


def _scale(text: str) -> float:
    top, _, bottom = text.partition("/")
    divisor = float(bottom or 1)
    if not (divisor > 0 and 0 < float(top) / divisor <= 1):
        raise ValueError
    return float(top) / divisor
