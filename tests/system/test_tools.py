"""tools/demo sets itself up, repairs itself, and says what is wrong in plain words."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ["pyproject.toml", "README.md", "LICENSE", "NOTICE", ".gitignore", "config", "zhcedge", "tools"]
NO_INDEX = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    "PIP_EXTRA_INDEX_URL": "",
    "PIP_FIND_LINKS": "",
    "PIP_NO_CACHE_DIR": "1",
    "PIP_RETRIES": "1",
}
"""An index on a port where nobody answers: what a machine without a network sees."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the sources in a folder with a blank in its name, without an environment."""
    folder = tmp_path / "a copy"
    folder.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    return folder


def demo(checkout: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    ours = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"} | environ
    return subprocess.run(
        [checkout / "tools" / "demo", *words],
        env=ours,
        cwd=checkout.parent,
        capture_output=True,
        text=True,
        check=False,
    )


def fake_python(folder: Path, body: str) -> str:
    """An interpreter that is a shell script."""
    path = folder / "python-fake"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def without(folder: Path, *blocked: str) -> str:
    """This Python, as a system whose packager has split `blocked` off."""
    hidden = folder / "hidden"
    hidden.mkdir()
    lines = "".join(f"    if name == {name!r}: raise ModuleNotFoundError(name)\n" for name in blocked)
    (hidden / "sitecustomize.py").write_text(
        "import sys\nclass Hide:\n  def find_spec(self, name, path=None, target=None):\n"
        f"{lines}    return None\nsys.meta_path.insert(0, Hide())\n"
    )
    real = Path(sys.executable).resolve()
    return fake_python(folder, f'PYTHONPATH="{hidden}" exec "{real}" "$@"')


def test_without_ensurepip_and_pip_it_prints_the_apt_line(checkout: Path, tmp_path: Path) -> None:
    done = demo(checkout, "--help", PYTHON=without(tmp_path, "ensurepip", "pip"))
    assert done.returncode == 69
    assert "apt-get install python3." in done.stderr
    assert "-venv" in done.stderr


def test_an_old_python_is_passed_over(checkout: Path, tmp_path: Path) -> None:
    old = fake_python(tmp_path, "exit 1")
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("sh", "dirname", "sha256sum", "rm", "mkdir", "touch", "cat", "flock"):
        if found := shutil.which(name):
            (bare / name).symlink_to(found)
    done = demo(checkout, "--help", PYTHON=old, PATH=str(bare))
    assert done.returncode == 69
    assert "No Python 3.10 to 3.14 found" in done.stderr


def test_a_foreign_environment_is_not_touched(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "precious").write_text("")
    done = demo(checkout, "--help")
    assert done.returncode == 69
    assert "was not made by this script" in done.stderr
    assert (checkout / ".venv" / "precious").exists()


@pytest.mark.slow
@pytest.mark.company
def test_offline_is_said_in_a_clear_word(checkout: Path) -> None:
    done = demo(checkout, "--help", **NO_INDEX)
    assert done.returncode == 69
    assert "is this machine offline?" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.company
def test_it_sets_up_once_and_repairs_what_was_interrupted(checkout: Path) -> None:
    demo(checkout, "--help", **NO_INDEX)  # an interrupted set-up is what the next one finds
    first = demo(checkout, "--help")
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("usage: zhc-edge demo")
    assert " packages, once" in first.stderr

    second = demo(checkout, "--help", **NO_INDEX)
    assert (second.returncode, second.stderr) == (0, "")

    (checkout / ".venv" / ".zhc-busy").touch()
    repaired = demo(checkout, "--help")
    assert repaired.returncode == 0, repaired.stderr
    assert " packages, once" in repaired.stderr

    with (checkout / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    changed = demo(checkout, "--help")
    assert changed.returncode == 0, changed.stderr
    assert "Setting up, once" in changed.stderr


@pytest.mark.slow
@pytest.mark.company
def test_without_ensurepip_the_systems_pip_helps(checkout: Path, tmp_path: Path) -> None:
    done = demo(checkout, "--help", PYTHON=without(tmp_path, "ensurepip"))
    assert done.returncode == 0, done.stderr
