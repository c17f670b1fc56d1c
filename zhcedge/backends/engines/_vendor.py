"""The one home of ONNX Runtime, for every engine that uses it; its untyped surface ends here.

The import happens in `open_session`, so that this module can be imported where the package is missing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from zhcedge.core.errors import BackendUnavailableError, ModelError, PipelineError

_LOG_ERRORS_ONLY, _LOG_FATAL_ONLY = 3, 4


class NodeArg(Protocol):
    """An input or output of a graph. A dimension is a number, or a name or None where it is free."""

    name: str
    shape: Sequence[int | str | None]
    type: str


class IoBinding(Protocol):
    """Addresses that a session reads from and writes to."""

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: object, shape: Sequence[int], buffer_ptr: int
    ) -> None: ...
    def bind_output(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: object,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None: ...


class NativeSession(Protocol):
    """What we use of onnxruntime.InferenceSession."""

    def get_inputs(self) -> Sequence[NodeArg]: ...
    def get_outputs(self) -> Sequence[NodeArg]: ...
    def get_providers(self) -> Sequence[str]: ...
    def io_binding(self) -> IoBinding: ...
    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, npt.NDArray[np.generic]]
    ) -> Sequence[npt.NDArray[np.generic]]: ...
    def run_with_iobinding(self, iobinding: IoBinding, run_options: object = None) -> None: ...


class Session:
    """An InferenceSession with the errors of ours."""

    def __init__(self, native: NativeSession, version: str) -> None:
        self._native = native
        self.version = version

    @property
    def inputs(self) -> Sequence[NodeArg]:
        return self._native.get_inputs()

    @property
    def outputs(self) -> Sequence[NodeArg]:
        return self._native.get_outputs()

    @property
    def providers(self) -> Sequence[str]:
        """Execution providers in use, in order: a missing one is left out without an error."""
        return self._native.get_providers()

    def io_binding(self) -> IoBinding:
        return self._native.io_binding()

    def run_once(self, feed: Mapping[str, npt.NDArray[np.generic]]) -> dict[str, npt.NDArray[np.generic]]:
        """Every output for these inputs, in memory of the library. Raises PipelineError. Not for the frame path."""
        try:
            values = self._native.run(None, feed)
        # The package's errors share no base class of their own: Exception and RuntimeError are what they derive from.
        except Exception as error:
            raise PipelineError(f"inference failed: {_first_line(error)}", where="onnxruntime") from error
        return {node.name: value for node, value in zip(self.outputs, values, strict=True)}

    def run(self, binding: IoBinding, run_options: object = None) -> None:
        """Run over bound memory; releases the interpreter lock. Raises PipelineError."""
        try:
            self._native.run_with_iobinding(binding, run_options)
        # The package's errors share no base class of their own: Exception and RuntimeError are what they derive from.
        except Exception as error:
            raise PipelineError(f"inference failed: {_first_line(error)}", where="onnxruntime") from error


def open_session(
    model_path: Path,
    *,
    install: str,
    providers: Sequence[tuple[str, Mapping[str, str]]],
    threads: int,
    config: Mapping[str, str],
) -> Session:
    """Load a model.

    Args:
        install: the line that installs the package, for the error.
        providers: execution providers and their options, best first.
        threads: intra-op threads, at least 1.
        config: session configuration entries (onnxruntime_session_options_config_keys.h).

    Raises:
        BackendUnavailableError: the package is missing or does not load.
        ModelError: the file is not a model that ONNX Runtime can run.
    """
    # Its builds from 1.32 on upload usage data; this variable, read at import, is the only switch that stops the
    # uploader's thread (disable_telemetry_events() comes too late). An appliance talks to nobody it was not told of.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    # On the CPU every error is raised as well, and said by whoever catches it. A provider that can't be loaded is not.
    on_cpu_only = [name for name, _ in providers] == ["CPUExecutionProvider"]
    severity = _LOG_FATAL_ONLY if on_cpu_only else _LOG_ERRORS_ONLY
    try:
        import onnxruntime

        version, options = str(onnxruntime.__version__), onnxruntime.SessionOptions()
        # What is said before a session exists goes to another logger, which has a level of its own.
        onnxruntime.set_default_logger_severity(severity)
    except (ImportError, AttributeError) as error:
        # AttributeError: a half-removed package leaves an empty namespace behind.
        raise BackendUnavailableError(f"onnxruntime can't be imported ({error})", fix=install) from error
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = severity
    for key, value in config.items():
        options.add_session_config_entry(key, value)
    try:
        native: NativeSession = onnxruntime.InferenceSession(
            str(model_path), sess_options=options, providers=[(name, dict(values)) for name, values in providers]
        )
    # The package's errors share no base class of their own: Exception and RuntimeError are what they derive from.
    except Exception as error:
        raise ModelError(
            f"onnxruntime {version} can't load the model: {_first_line(error)}",
            where=str(model_path),
            fix="install the bundle again",
        ) from error
    return Session(native, version)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def run_options(entries: Mapping[str, str]) -> object:
    """Options of a run (onnxruntime_run_options_config_keys.h); the package must be installed."""
    import onnxruntime

    options: object = onnxruntime.RunOptions()
    for key, value in entries.items():
        options.add_run_config_entry(key, value)  # type: ignore[attr-defined]
    return options
