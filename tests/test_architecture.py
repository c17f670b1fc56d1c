"""Who may import whom, what may stand where, and that nothing happens at import time."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "zhcedge"

# Package -> what of ours it may import besides itself. The longest name that fits a module counts.
ALLOWED: dict[str, tuple[str, ...]] = {
    "zhcedge": (),
    "zhcedge.__main__": ("zhcedge.cli",),
    "zhcedge.core": (),
    "zhcedge.config": ("zhcedge.core",),
    "zhcedge.pipeline": ("zhcedge.core", "zhcedge.config.schema"),
    "zhcedge.analytics": ("zhcedge.core", "zhcedge.config.schema"),
    "zhcedge.media": ("zhcedge.core", "zhcedge.config.channel"),
    "zhcedge.store": ("zhcedge.core", "zhcedge.config.schema"),
    "zhcedge.models": ("zhcedge.core", "zhcedge.config.schema"),
    "zhcedge.publish": ("zhcedge.core", "zhcedge.config.schema"),
    "zhcedge.service": ("zhcedge.core", "zhcedge.config.schema"),
    "zhcedge.ota": ("zhcedge.core", "zhcedge.config.schema"),
    "zhcedge.backends.registry": ("zhcedge.core",),
    "zhcedge.backends.cpu": ("zhcedge.core", "zhcedge.media"),
    "zhcedge.backends.cuda": ("zhcedge.core", "zhcedge.media"),
    "zhcedge.backends.engines": ("zhcedge.core", "zhcedge.media"),
    "zhcedge.backends.nvcodec": ("zhcedge.core", "zhcedge.media"),
    "zhcedge.backends.jetson": ("zhcedge.core", "zhcedge.media"),
    "zhcedge.profiles": ("zhcedge.core",),
    "zhcedge.app": ("zhcedge",),
    "zhcedge.cli": ("zhcedge.app", "zhcedge.core.errors", "zhcedge.core.printing", "zhcedge.__version__"),
}

# Library -> where it may be imported. Anything that is neither here nor in Python itself may not be imported at all.
HOMES: dict[str, tuple[str, ...]] = {
    "numpy": ("zhcedge",),
    "yaml": ("zhcedge.config", "zhcedge.models", "zhcedge.app.bench_latency"),
    "pydantic": ("zhcedge.config", "zhcedge.models"),
    "pydantic_core": ("zhcedge.config", "zhcedge.models"),
    "orjson": ("zhcedge.publish.payloads",),
    "paho": ("zhcedge.publish", "zhcedge.app.demo", "zhcedge.app.bench_latency"),
    "av": ("zhcedge.media", "zhcedge.backends.cpu"),
    "PIL": ("zhcedge.media",),
    "onnx": ("zhcedge.models",),
    "google": ("zhcedge.models",),  # protobuf, which onnx brings along
    "onnxruntime": ("zhcedge.models", "zhcedge.backends.engines", "zhcedge.app.engine_only"),
    "pycocotools": ("zhcedge.models",),
    "tensorrt": ("zhcedge.backends.engines",),
    "tensorrt_rtx": ("zhcedge.backends.engines",),
    "pycuda": ("zhcedge.backends.cuda",),
    "cuda": ("zhcedge.backends.cuda",),
    "cupti": ("zhcedge.backends.cuda",),
    "nvtx": ("zhcedge.backends.cuda",),
    "pynvml": ("zhcedge.backends.cuda",),
    "PyNvVideoCodec": ("zhcedge.backends.nvcodec",),
    "gi": ("zhcedge.backends.jetson",),
    "jetson_utils": ("zhcedge.backends.jetson",),
}

# Absent on a plain laptop that has the core dependencies only.
VENDOR = (
    "amqtt",
    "av",
    "cuda",
    "cupti",
    "gi",
    "jetson_utils",
    "nvtx",
    "onnx",
    "onnxruntime",
    "pycocotools",
    "pycuda",
    "pynvml",
    "PyNvVideoCodec",
    "tensorrt",
    "tensorrt_rtx",
)
# What needs them, and so is not asked to import there. engine_only is a script, never imported.
VENDOR_PACKAGES = (
    "zhcedge.app.engine_only",
    "zhcedge.media",
    "zhcedge.backends.cpu",
    "zhcedge.backends.cuda",
    "zhcedge.backends.engines",
    "zhcedge.backends.nvcodec",
    "zhcedge.backends.jetson",
)


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def home_rule(module: str) -> str:
    """The longest key of ALLOWED that the module lies in; empty when no rule covers it."""
    if module == "zhcedge":
        return module
    return max((rule for rule in ALLOWED if rule != "zhcedge" and is_within(module, rule)), key=len, default="")


def modules(package: Path) -> Iterator[tuple[str, Path]]:
    """Dotted name and path of every module of the package."""
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(tree: ast.AST, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import, those inside functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            base = parts[: len(parts) - node.level + (1 if is_package else 0)] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{prefix}.{alias.name}"


def import_faults(module: str, path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    rule = home_rule(module)
    if not rule and path.read_text().strip():
        yield f"{path.name}: no rule in ALLOWED covers {module}"
        return
    for line, name in imports(tree, module, is_package=path.name == "__init__.py"):
        where = f"{module}:{line}: imports {name}"
        top = name.split(".")[0]
        if top == "zhcedge":
            if not any(is_within(name, allowed) for allowed in (rule, *ALLOWED[rule])):
                yield f"{where}; {rule} may import {', '.join(ALLOWED[rule]) or 'nothing of ours'}"
        elif top in HOMES:
            if not any(is_within(module, home) for home in HOMES[top]):
                yield f"{where}; its home is {', '.join(HOMES[top])}"
        elif top not in sys.stdlib_module_names:
            yield f"{where}; a library without a home in HOMES"


def any_faults(module: str, path: Path) -> Iterator[str]:
    if path.name.startswith("_vendor"):
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            is_any = any(alias.name == "Any" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            is_any = node.attr == "Any"
        else:
            continue
        if is_any:
            yield f"{module}:{node.lineno}: Any belongs into a _vendor module; say object, or the type"


def sys_modules_faults(module: str, path: Path) -> Iterator[str]:
    """Writing to sys.modules, or handing it to somebody who could; looking a name up in it is fine."""
    tree = ast.parse(path.read_text())
    reads: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            reads.add(node.value)
        elif isinstance(node, (ast.Compare, ast.comprehension)):
            reads.update(node.comparators if isinstance(node, ast.Compare) else [node.iter])
        elif isinstance(node, ast.Attribute) and node.attr in ("get", "keys"):
            reads.add(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.modules" and node not in reads:
            yield f"{module}:{node.lineno}: sys.modules is not ours to change"


def import_time_faults(module: str, path: Path) -> Iterator[str]:
    """Module level holds definitions, imports and constants; no loops, no bare calls, no look at the environment."""
    for node in ast.parse(path.read_text()).body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_guarded = isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'")
        # The one way to give a missing vendor package a name and a line that installs it.
        is_guarded |= isinstance(node, ast.Try) and path.name.startswith("_vendor")
        if isinstance(node, (ast.Expr, ast.For, ast.While, ast.With, ast.Try, ast.If)) and not (
            is_docstring or is_guarded
        ):
            yield f"{module}:{node.lineno}: something happens at import time"
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and "environ" in ast.unparse(node):
            yield f"{module}:{node.lineno}: reads the environment at import time"


CHECKS = {
    "imports": import_faults,
    "Any": any_faults,
    "sys.modules": sys_modules_faults,
    "import time": import_time_faults,
}


def faults(package: Path, check: str) -> list[str]:
    return [fault for module, path in modules(package) for fault in CHECKS[check](module, path)]


@pytest.mark.parametrize("check", CHECKS)
def test_the_package_keeps_the_rules(check: str) -> None:
    assert faults(PACKAGE, check) == []


def test_tests_do_not_touch_sys_modules() -> None:
    tests = ((path.name, path) for path in (ROOT / "tests").rglob("*.py") if path.name != Path(__file__).name)
    assert [fault for name, path in tests for fault in sys_modules_faults(name, path)] == []


@pytest.mark.parametrize(
    ("check", "file", "text"),
    [
        ("imports", "core/bad.py", "import zhcedge.app.run\n"),
        ("imports", "core/bad.py", "def f() -> None:\n    from zhcedge.backends import registry\n"),
        ("imports", "core/bad.py", "from ..config import schema\n"),
        ("imports", "pipeline/bad.py", "from zhcedge.config import load\n"),
        ("imports", "pipeline/bad.py", "import zhcedge.backends.cpu.device\n"),
        ("imports", "analytics/bad.py", "from zhcedge import publish\n"),
        ("imports", "backends/cpu/bad.py", "from zhcedge.backends.cuda import context\n"),
        ("imports", "backends/cuda/bad.py", "import onnxruntime\n"),
        ("imports", "core/bad.py", "import requests\n"),
        ("imports", "cli/bad.py", "from zhcedge.config import load\n"),
        ("imports", "surprise/bad.py", "import os\n"),
        ("Any", "core/bad.py", "from typing import Any\n"),
        ("Any", "core/bad.py", "import typing\nx: typing.Any = 1\n"),
        ("sys.modules", "core/bad.py", "import sys\ndef f() -> None:\n    sys.modules['a'] = sys\n"),
        ("sys.modules", "core/bad.py", "import sys\ndef f() -> None:\n    sys.modules.pop('a')\n"),
        ("import time", "core/bad.py", "print('hello')\n"),
        ("import time", "core/bad.py", "try:\n    import av\nexcept ImportError:\n    av = None\n"),
        ("import time", "core/bad.py", "import os\nHOME = os.environ['HOME']\n"),
    ],
)
def test_a_planted_violation_is_seen(tmp_path: Path, check: str, file: str, text: str) -> None:
    planted = tmp_path / "zhcedge" / file
    planted.parent.mkdir(parents=True)
    planted.write_text(text)
    assert len(faults(tmp_path / "zhcedge", check)) == 1


def test_looking_into_sys_modules_is_not_a_fault(tmp_path: Path) -> None:
    planted = tmp_path / "zhcedge" / "core" / "good.py"
    planted.parent.mkdir(parents=True)
    planted.write_text("import sys\ndef f() -> list[str]:\n    return [name for name in sys.modules if name != 'a']\n")
    assert faults(tmp_path / "zhcedge", "sys.modules") == []


def test_an_allowed_import_is_not_a_fault(tmp_path: Path) -> None:
    planted = tmp_path / "zhcedge" / "backends" / "cpu" / "good.py"
    planted.parent.mkdir(parents=True)
    planted.write_text("import numpy as np\nfrom zhcedge.core.types import Surface\nimport av\nfrom . import sibling\n")
    assert faults(tmp_path / "zhcedge", "imports") == []


# Imports every module given on the command line where vendor packages are absent, and reports what an import does.
LAPTOP = textwrap.dedent(
    """
    import importlib, os, sys, threading

    class Blocked:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in %r:
                raise ModuleNotFoundError("blocked: " + name, name=name)

    sys.meta_path.insert(0, Blocked())
    deeds = []
    def watch(event, arguments):
        is_write = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
        if is_write or event in ("subprocess.Popen", "os.fork", "os.system", "socket.connect", "socket.bind"):
            deeds.append(event + " " + str(arguments[:1]))
    import numpy  # what the libraries do when they are imported is not our subject
    for library in ("yaml", "pydantic", "paho.mqtt.client"):
        importlib.import_module(library)
    sys.addaudithook(watch)
    for module in sys.argv[1:]:
        try:
            importlib.import_module(module)
        except ImportError as error:
            deeds.append(module + ": " + str(error))
    if threading.active_count() > 1:
        deeds.append("a thread was started")
    print("\\n".join(deeds), end="")
    """
)


def test_modules_import_on_a_plain_laptop_and_nothing_happens() -> None:
    names = [
        name
        for name, _ in modules(PACKAGE)
        if name != "zhcedge.__main__" and not any(is_within(name, vendor) for vendor in VENDOR_PACKAGES)
    ]
    done = subprocess.run(
        [sys.executable, "-B", "-c", LAPTOP % (VENDOR,), *names], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
