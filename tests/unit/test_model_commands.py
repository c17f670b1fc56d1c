"""`zhc-edge model ls|show|verify`, and names that lead to imported bundles."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.unit.support_models import Row, encode, write_constant_model
from tests.unit.test_bundle import make_bundle
from zhcedge import cli
from zhcedge.app.check import check
from zhcedge.core.types import HeadKind
from zhcedge.models.bundle import load_bundle
from zhcedge.models.library import SYSTEM_FOLDER, all_bundles, find_bundle, search_folders

DEFAULT = "nanodet-g-416"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of bundles."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    found = tmp_path / "zhcedge" / "models"
    found.mkdir(parents=True)
    return found


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(["model", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_ls_shows_what_a_name_leads_to_and_what_is_broken(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_bundle(folder / "mine")
    (make_bundle(folder / "torn") / "model.onnx").unlink()
    make_bundle(folder / "Not A Name")
    (folder / ".hidden").mkdir()
    (folder / "empty").mkdir()
    code, out, _ = run(capsys, "ls", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert (code, set(rows)) == (0, {DEFAULT, "mine", "torn"})
    assert rows[DEFAULT]["built_in"]
    assert (rows["mine"]["classes"], rows["mine"]["width"], rows["mine"]["height"]) == (2, 96, 64)
    assert "model.onnx" in rows["torn"]["problem"]
    code, out, err = run(capsys, "ls")
    assert code == 0
    assert "UNUSABLE" in out
    assert str(folder) in err


def test_a_name_leads_to_the_users_folder_but_never_hides_a_built_in_bundle(folder: Path) -> None:
    make_bundle(folder / "mine")
    make_bundle(folder / DEFAULT)
    assert load_bundle("mine").folder == folder / "mine"
    assert load_bundle(DEFAULT).folder != folder / DEFAULT
    assert [(entry.name, entry.is_embedded) for entry in all_bundles()] == [(DEFAULT, True), ("mine", False)]


@pytest.mark.parametrize("name", ["../mine", "mine/../mine", "./mine"])
def test_a_path_is_never_looked_up_as_a_name(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_bundle(folder / "mine")
    work = folder / "x"
    work.mkdir()
    monkeypatch.chdir(work)
    if name == "../mine":
        assert find_bundle(name) == Path("../mine")
    else:
        assert cli.main(["model", "show", name]) == 65


@pytest.mark.parametrize("home", ["relative/path", ""])
def test_a_data_home_that_is_no_absolute_path_counts_for_nothing(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", home)
    monkeypatch.setenv("HOME", "/home/somebody")
    own = Path("/home/somebody/.local/share/zhcedge/models")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert search_folders() == (own, SYSTEM_FOLDER)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert search_folders() == (SYSTEM_FOLDER, own)


def test_a_configuration_may_name_an_imported_bundle(folder: Path, tmp_path: Path) -> None:
    make_bundle(folder / "mine")
    path = tmp_path / "c.yaml"
    path.write_text("model: {bundle: mine, labels: [car]}\nchannels: {door: {source: {uri: 'clip:walkers'}}}\n")
    assert check(path, [], {}).problems == ()
    path.write_text("model: {bundle: mine2}\nchannels: {door: {source: {uri: 'clip:walkers'}}}\n")
    assert "'mine'" in check(path, [], {}).problems[0].fix


def test_show_tells_facts_hashes_sizes_and_licence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_bundle(folder / "mine") / "model.onnx"
    code, out, _ = run(capsys, "show", "mine", "--json")
    shown = json.loads(out)
    assert (code, shown["head"], shown["licence"], shown["batch"]) == (0, "yolov8", "Apache-2.0", 1)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert shown["files"]["model.onnx"] == {"bytes": path.stat().st_size, "sha256": digest}
    _, out, _ = run(capsys, "show", str(path.parent))
    assert digest in out
    assert "person, car" in out


def test_debug_may_stand_behind_everything_else(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "show", "nothing", "--debug")
    assert code == 65
    assert "Traceback" in err


def test_show_of_nothing_is_exit_65_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "show", "nanodet")
    assert code == 65
    assert DEFAULT in err


def test_verify_runs_the_built_in_bundle_and_finds_people(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "verify", DEFAULT, "--json")
    found = json.loads(out)
    assert (code, err, found["warnings"]) == (0, "", [])
    assert found["counts"]["person"] >= 4
    assert "onnxruntime" in found["engine"]


def test_verify_refuses_a_changed_file_a_foreign_graph_and_an_unknown_profile(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[Row] = [((8, 16, 16, 32), 0.75, 0)]
    path = write_constant_model(folder / "m.onnx", encode(HeadKind.YOLO_ANCHOR_FREE, rows, 2, 84))
    assert cli.main(["model", "import", str(path), "--labels", "a,b", "--out", str(folder)]) == 0
    capsys.readouterr()
    assert run(capsys, "verify", "m")[0] == 0
    assert run(capsys, "verify", "m", "--profile", "none")[0] == 2

    manifest = json.loads((folder / "m" / "manifest.json").read_text())
    manifest["output"]["shape"] = [1, 6, 85]
    (folder / "m" / "manifest.json").write_text(json.dumps(manifest))
    code, _, err = run(capsys, "verify", "m")
    assert code == 65
    assert "85" in err

    (folder / "m" / "labels.txt").write_text("a\nc\n")
    code, _, err = run(capsys, "verify", "m")
    assert code == 65
    assert "labels.txt" in err


@pytest.mark.parametrize("words", [["ls"], ["show", DEFAULT]])
def test_the_tables_of_the_built_in_bundle_are_for_people(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert DEFAULT in out
    assert "{" not in out


@pytest.mark.parametrize("words", [[], ["ls"], ["show"], ["import"], ["verify"]])
def test_each_action_has_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["model", *words, "--help"])
    assert caught.value.code == 0
    assert "usage: zhc-edge model" in capsys.readouterr().out
