"""What a run says it has written, it has."""

from __future__ import annotations

from pathlib import Path

from zhcedge.app.outputs import OutputWatch
from zhcedge.config.load import load_text
from zhcedge.media.mux import PendingFile

TEXT = """
channels:
  gate:
    source: {uri: "clip:walkers"}
    sinks:
      - {kind: mp4, path: seen.mp4}
      - {kind: jsonl, path: old.jsonl}
      - {kind: jsonl, path: renewed.jsonl}
      - {kind: jpeg, path: pictures}
      - {kind: jpeg, path: idle}
"""


def test_only_what_was_written_is_listed(tmp_path: Path) -> None:
    config = load_text(TEXT, "test", [f"output_dir={tmp_path}"]).config
    for name in ("old.jsonl", "renewed.jsonl"):
        (tmp_path / name).write_text("of an earlier run")
    for name in ("pictures", "idle"):
        (tmp_path / name).mkdir()
    watch = OutputWatch(config)
    assert watch.written() == []
    renewed = PendingFile(tmp_path / "renewed.jsonl")
    renewed.commit()
    (tmp_path / "pictures" / "00000000.jpg").write_bytes(b"")
    assert watch.written() == [tmp_path / "renewed.jsonl", tmp_path / "pictures"]
