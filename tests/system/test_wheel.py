"""The wheel: what is in it, and that it works in an empty environment of every Python we can find."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.system.processes import Marked

pytestmark = [pytest.mark.slow, pytest.mark.company]

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ["pyproject.toml", "README.md", "LICENSE", "NOTICE", ".gitignore", "config", "zhcedge"]
OTHER_PYTHON = "3.10"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as a release is: the wheel out of the source archive, from a copy of the sources."""
    folder = tmp_path_factory.mktemp("build")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(folder / "dist"), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = (folder / "dist").glob("zhcedge-*.whl")
    return built


def test_the_wheel_holds_its_data_and_nothing_foreign(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert archive.read("zhcedge/data/demo.yaml") == (ROOT / "config" / "demo.yaml").read_bytes()
        assert len(archive.read("zhcedge/data/walkers.mp4")) == (ROOT / "zhcedge/data/walkers.mp4").stat().st_size
        assert "zhcedge/py.typed" in names
        assert any(name.endswith("nanodet-g-416/model.onnx") for name in names)
        assert {name.rpartition("/")[2] for name in names if "/licenses/" in name} == {"LICENSE", "NOTICE"}
        assert {name.split("/")[0].split("-")[0] for name in names} == {"zhcedge"}


def other_python() -> Path | None:
    """An interpreter of OTHER_PYTHON that runs: on the PATH, or among pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{OTHER_PYTHON}"), *sorted(pyenv.glob(f"{OTHER_PYTHON}.*/bin/python3"))]
    for candidate in candidates:
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return Path(candidate)
    return None


def test_the_demo_runs_from_the_wheel_on_this_python(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    check_installed(wheel, tmp_path)


def test_the_demo_runs_from_the_wheel_on_the_oldest_python(wheel: Path, tmp_path: Path) -> None:
    python = other_python()
    if python is None:
        pytest.skip(f"cannot run here: no Python {OTHER_PYTHON}")
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True)
    check_installed(wheel, tmp_path)


def check_installed(wheel: Path, folder: Path) -> None:
    """Install the wheel into folder/venv and run it in an empty folder."""
    program = folder / "venv" / "bin"
    marked = Marked(folder / "temporary")
    (folder / "empty").mkdir()

    def run(*words: str | Path) -> str:
        done = subprocess.run(
            words, cwd=folder / "empty", env=marked.environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(program / "python", "-m", "pip", "install", "--quiet", f"{wheel}[demo]")
    assert run(program / "zhc-edge", "version").startswith("zhc-edge ")
    text = run(program / "zhc-edge", "demo", "--broker", "amqtt")
    assert "frames   300" in text
    assert (folder / "empty" / "zhc-edge-demo" / "annotated.mp4").exists()
    assert marked.left_over() == []
