"""A process of its own that loads one library and says its version: one that is broken takes only this process along.

The answer is the last line of standard output, as JSON: whatever the library prints comes before it.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
from importlib import metadata
from types import ModuleType

CUDA_DRIVER = "libcuda"


def main(name: str, distributions: list[str]) -> None:
    """Load it. Raises whatever that raises; the last line of the traceback is the reason."""
    version, note = _cuda_driver() if name == CUDA_DRIVER else _module(name, distributions)
    print(f"\n{json.dumps({'version': version, 'note': note})}", flush=True)


def _module(name: str, distributions: list[str]) -> tuple[str, str]:
    module = importlib.import_module(name)
    own: object = getattr(module, "__version__", "")
    version = str(own) if isinstance(own, str) and own else _installed(distributions)
    return version, _note(name, module)


def _installed(distributions: list[str]) -> str:
    for distribution in distributions:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _note(name: str, module: ModuleType) -> str:
    if name == "onnxruntime":
        return ", ".join(provider.removesuffix("ExecutionProvider") for provider in module.get_available_providers())
    if name == "jetson_utils" and not getattr(module, "HAS_JETSON_UTILS_EXT", True):
        # It imports all the same, and does nothing.
        raise ImportError("its C extension can't be loaded")
    if name == "gi":
        module.require_version("Gst", "1.0")
        gst = importlib.import_module("gi.repository.Gst")
        return str(gst.version_string())
    return ""


def _cuda_driver() -> tuple[str, str]:
    """The newest CUDA that the driver's library knows: 13000 is 13.0."""
    number = ctypes.c_int(0)
    failed: int = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    if failed:
        raise OSError(f"cuDriverGetVersion failed with {failed}")
    return f"{number.value // 1000}.{number.value % 1000 // 10}", ""


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
