"""PyTorch checkpoints (.pt) to ONNX, by ultralytics' own export in a process of its own.

Loading a checkpoint runs code that is inside of it: that is how PyTorch's format works. The child process keeps a crash
and its memory away from us, not its intentions.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from zhcedge.core.errors import BackendUnavailableError, ModelError, OutputError, SourceMissingError

SUFFIXES = (".pt", ".pth")

_CHILD = """
import json, sys
from ultralytics import YOLO
path, options = json.loads(sys.argv[1])
print("exported", YOLO(path).export(**options))
"""
_TIMEOUT_S = 3600.0
# Without them it installs packages and asks a server for news.
_QUIET = {"YOLO_AUTOINSTALL": "false", "YOLO_OFFLINE": "true", "YOLO_VERBOSE": "false"}


def export_command(path: Path, size_px: tuple[int, int] | None) -> str:
    """What a person types to export `path` on a computer that has ultralytics."""
    width, height = size_px or (640, 640)
    size = str(width) if width == height else f"[{height},{width}]"
    arguments = [f"model={path}", "format=onnx", f"imgsz={size}"]
    return f"yolo export {shlex.join(arguments)}"


def export_checkpoint(path: Path, size_px: tuple[int, int] | None, folder: Path) -> Path:
    """Export a checkpoint into `folder` and return the ONNX file. Blocks for up to an hour.

    Raises SourceMissingError where there is no such file; BackendUnavailableError, with the command to run elsewhere,
    without ultralytics; ModelError, with the last thing that it said, when the export fails.
    """
    where = str(path)
    if not path.is_file():
        raise SourceMissingError("there is no such file", where=where, fix="check the path")
    command = export_command(path, size_px)
    if importlib.util.find_spec("ultralytics") is None:
        raise BackendUnavailableError(
            "a checkpoint is exported by ultralytics, which is not installed here",
            where=where,
            fix=f"on a computer where it is (pip install ultralytics), run: {command}; then import the .onnx",
        )
    copy = folder / path.name
    try:
        shutil.copyfile(path, copy)  # the export writes beside the file
    except OSError as error:
        raise OutputError(f"the checkpoint can't be copied: {error.strerror}", where=str(copy)) from error
    width, height = size_px or (640, 640)
    options = {"format": "onnx", "imgsz": [height, width]}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, json.dumps([str(copy), options])],
            env={**os.environ, **_QUIET},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            cwd=folder,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(
            f"the export is not done after {_TIMEOUT_S:.0f} s", where=where, fix=f"run {command}"
        ) from error
    exported = sorted(folder.glob("*.onnx"))
    if done.returncode or not exported:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        raise ModelError(
            f"ultralytics can't export it: {lines[-1].strip() if lines else 'it said nothing'}",
            where=where,
            fix=f"see what it says to: {command}",
        )
    return exported[0]
