"""What an ONNX model really gives for a picture of some size: found by running it, because a graph need not say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zhcedge.backends.engines._vendor import open_session
from zhcedge.backends.engines.onnxruntime import INSTALL


@dataclass(frozen=True)
class ProbedOutput:
    """One output of a run: its shape, and numpy's name of its element type; () and "" where it is no tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class ModelProbe:
    """A model loaded on the CPU for a few runs. Not for the frame path.

    Raises BackendUnavailableError without onnxruntime, ModelError for a file that does not load.
    """

    def __init__(self, path: Path) -> None:
        # Defaults but for the threads: the outputs' shapes are asked for, not speed.
        self._session = open_session(
            path, install=INSTALL, providers=[("CPUExecutionProvider", {})], threads=1, config={}
        )

    def run(self, input_name: str, shape: tuple[int, ...], dtype: str) -> tuple[ProbedOutput, ...]:
        """Outputs for a grey picture. Raises PipelineError when the graph can't be run at that shape."""
        grey = np.full(shape, 0.5, dtype)
        outputs = self._session.run_once({input_name: grey})
        return tuple(
            ProbedOutput(name, tuple(value.shape), value.dtype.name)
            if isinstance(value, np.ndarray)
            else ProbedOutput(name, (), "")
            for name, value in outputs.items()
        )
