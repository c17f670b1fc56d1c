"""Clips from real files: what is in them, where they begin and end, and what is said when that is not as asked."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from tests.contract.clip_scene import Scene, assert_decodes_to_its_end, is_run_of, make_video, payloads, times_s
from zhcedge.core.errors import MediaError, UsageError
from zhcedge.media.packets import PacketRing

pytestmark = [pytest.mark.slow, pytest.mark.company]  # processes, servers and sockets: minutes in all


def test_a_clip_is_the_sources_packets_from_a_key_frame_to_the_end_asked_for(tmp_path: Path) -> None:
    video = make_video(tmp_path / "video.mp4", 12)
    with Scene(video, tmp_path / "clips") as scene:
        scene.play(45)
        scene.begin("a", 42)  # at 4.2 s, so from 3.2 s; the key frame before is at 3.0 s
        scene.play(20)
        scene.end("a", 42, 60)  # at 6.0 s, so to 6.5 s
        scene.play(20)
        clip = scene.clip()
    (part,) = clip.parts
    assert (clip.channel, clip.key, clip.notes) == ("gate", "a", ())
    assert payloads(part.path) == payloads(video)[30:66]
    assert times_s(part.path) == pytest.approx([index / 10 for index in range(36)])
    assert (part.from_s, part.to_s) == pytest.approx((0.2, 3.5))
    assert part.seconds == pytest.approx(3.6)
    assert part.size_bytes == part.path.stat().st_size
    assert abs(part.start_ns - scene.captured[30]) < 1000
    assert [file.name for file in part.path.parent.iterdir()] == [part.path.name]


@pytest.mark.parametrize(
    ("codec", "suffix", "options"),
    [
        ("libx264", "mp4", {}),
        ("libx264", "ts", {}),
        # Pictures that come after a key frame, are shown before it and need what was before it.
        ("libx264", "mp4", {"x264-params": "open-gop=1:bframes=3:b-adapt=0:scenecut=0"}),
        ("libx265", "mp4", {"x265-params": "log-level=0:open-gop=1:keyint=10"}),
        ("libx265", "ts", {"x265-params": "log-level=0:open-gop=0:keyint=10"}),
        ("mjpeg", "mkv", {}),
        ("libsvtav1", "mkv", {"preset": "12", "svtav1-params": "pred-struct=1:keyint=10"}),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_every_codec_gives_clips_that_decode_from_their_first_picture_on(
    codec: str, suffix: str, options: dict[str, str], tmp_path: Path
) -> None:
    video = make_video(tmp_path / f"video.{suffix}", 8, codec=codec, options=options, b_frames=2)
    with Scene(video, tmp_path / "clips") as scene:
        scene.play(45)
        scene.begin("a", 40)
        scene.end("a", 40, 44)
        scene.play(25)
        clip = scene.clip()
    (part,) = clip.parts
    assert clip.notes == ()
    shown = times_s(part.path)
    assert shown[0] == 0
    assert assert_decodes_to_its_end(part.path) == len(shown)
    # Every picture to the end asked for, in steps of a tenth, and none after it but those that are needed before it.
    assert shown == pytest.approx([index / 10 for index in range(len(shown))], abs=0.002)
    assert part.to_s - 0.1 <= shown[-1] <= part.to_s + 0.001 + (0.4 if codec == "libx265" else 0.1)
    assert part.to_s - part.from_s == pytest.approx(1.9, abs=0.002)
    if suffix != "ts":  # a transport stream has start codes where MP4 has lengths
        whole = payloads(video)
        assert all(packet in whole for packet in payloads(part.path))


def test_b_frames_are_shown_in_order_and_without_a_hole_to_the_end_asked_for(tmp_path: Path) -> None:
    video = make_video(tmp_path / "video.mp4", 8, b_frames=3, options={"b-pyramid": "none", "bf": "3"})
    for last in (40, 41, 42, 43, 44, 49):
        with Scene(video, tmp_path / f"clips{last}", after_s=0.0) as scene:
            scene.play(60)
            scene.end("a", 40, last)
            (part,) = scene.clip().parts
        shown = times_s(part.path)
        # From the key frame at 3.0 s; what follows the end is what a picture before it needs, and what lies between.
        assert shown == pytest.approx([index / 10 for index in range(len(shown))])
        assert last - 30 + 1 <= len(shown) <= last - 30 + 1 + 3
        assert (part.from_s, part.to_s) == pytest.approx((0.0, (last - 30) / 10))


def test_events_of_one_time_share_a_recording(tmp_path: Path) -> None:
    with Scene(make_video(tmp_path / "video.mp4", 12), tmp_path / "clips") as scene:
        scene.play(45)
        scene.begin("a", 42)
        scene.play(10)
        scene.begin("b", 52)
        scene.play(10)
        scene.end("a", 42, 60)
        scene.play(10)
        scene.end("b", 52, 72)
        scene.play(20)
        clips = {clip.key: clip for clip in (scene.clip(), scene.clip())}
    (first,), (second,) = clips["a"].parts, clips["b"].parts
    assert first.path == second.path
    assert (first.from_s, first.to_s) == pytest.approx((0.2, 3.5))
    assert (second.from_s, second.to_s) == pytest.approx((1.2, 4.7))
    assert len(times_s(first.path)) == 48


def test_what_is_no_longer_held_is_missing_and_said(tmp_path: Path) -> None:
    with Scene(
        make_video(tmp_path / "video.mp4", 12), tmp_path / "clips", PacketRing(max_s=1.0), before_s=5.0
    ) as scene:
        scene.play(60)
        scene.end("a", 55, 58)
        time.sleep(0.5)  # until it has begun: meanwhile nothing more is forgotten
        scene.play(20)
        clip = scene.clip()
    (part,) = clip.parts
    assert clip.notes == ("it begins 3.5 s later than asked: no key frame from before is held",)
    assert part.from_s == 0.0
    assert times_s(part.path)[0] == 0.0


def test_a_group_longer_than_the_ring_costs_the_beginning_only(tmp_path: Path) -> None:
    video = make_video(tmp_path / "video.mp4", 12, gop=50, options={"crf": "4"})
    sizes = [len(packet) for packet in payloads(video)]
    with Scene(video, tmp_path / "clips", PacketRing(sum(sizes[:60]) // 2)) as scene:
        scene.play(48)
        scene.begin("a", 45)  # its group began at 0 and is held no more; the next one begins at 5.0 s
        scene.play(20)
        scene.end("a", 45, 60)
        scene.play(20)
        clip = scene.clip()
    (part,) = clip.parts
    assert payloads(part.path) == payloads(video)[50:66]
    assert len(clip.notes) == 1
    assert "1.5 s later than asked" in clip.notes[0]


def test_an_event_that_lasts_too_long_is_cut_and_later_words_about_it_change_nothing(tmp_path: Path) -> None:
    with Scene(make_video(tmp_path / "video.mp4", 12), tmp_path / "clips", max_s=3.0) as scene:
        scene.play(45)
        scene.begin("a", 42)
        scene.play(40)
        clip = scene.clip()
        scene.end("a", 42, 80)
        scene.play(20)
    assert clip.notes == ("it was cut at 3 s",)
    assert clip.parts[0].to_s - clip.parts[0].from_s == pytest.approx(3.0)
    assert scene.clips.empty()


def test_a_long_recording_goes_on_in_another_file_without_losing_a_packet(tmp_path: Path) -> None:
    video = make_video(tmp_path / "video.mp4", 12)
    with Scene(video, tmp_path / "clips", max_s=3.0) as scene:
        scene.play(25)
        scene.begin("a", 22)
        scene.play(20)
        scene.begin("b", 40)
        scene.end("b", 40, 41)
        scene.play(40)
        clips = {clip.key: clip for clip in (scene.clip(), scene.clip())}
    first, second = clips["b"].parts
    assert payloads(first.path) + payloads(second.path) == payloads(video)[10:47]
    assert [part.path for part in clips["a"].parts] == [first.path, second.path]
    assert (second.from_s, second.to_s) == pytest.approx((0.0, 0.6))


def test_an_event_just_after_a_recording_went_on_in_another_file_has_the_end_of_the_first_one(tmp_path: Path) -> None:
    with Scene(make_video(tmp_path / "video.mp4", 12), tmp_path / "clips", max_s=3.0) as scene:
        scene.play(25)
        scene.begin("a", 22)  # from 1.0 s on
        scene.play(20)
        scene.begin("b", 40)  # so that it goes on in another file from 4.0 s on
        scene.play(3)
        time.sleep(0.5)  # and has done so
        scene.begin("c", 46)  # from 3.6 s on
        scene.end("c", 46, 47)
        scene.play(40)
        clips = {clip.key: clip for clip in (scene.clip(), scene.clip(), scene.clip())}
    clip = clips["c"]
    assert clip.notes == ()
    first, second = clip.parts
    assert [part.path for part in clips["a"].parts] == [first.path, second.path]
    assert (first.from_s, first.to_s) == pytest.approx((2.6, 3.0))
    assert (second.from_s, second.to_s) == pytest.approx((0.0, 1.2))


def test_a_clip_that_ends_where_another_file_begins_has_nothing_of_that_file(tmp_path: Path) -> None:
    with Scene(make_video(tmp_path / "video.mp4", 12), tmp_path / "clips", max_s=3.0) as scene:
        scene.play(25)
        scene.begin("a", 20)  # from the key frame at 1.0 s to 4.0 s, where the next file begins
        scene.play(10)
        scene.begin("b", 32)
        scene.play(60)
        clips = {clip.key: clip for clip in (scene.clip(), scene.clip())}
    (part,) = clips["a"].parts
    assert (part.from_s, part.to_s) == pytest.approx((0.0, 3.0))
    assert clips["b"].parts[0].path == part.path
    assert len(clips["b"].parts) == 2


@pytest.mark.parametrize("jump", [100_000, 7])
def test_timestamps_that_jump_are_joined(jump: int, tmp_path: Path) -> None:
    # The file's timestamps leap ahead at packet 45; a transport stream may say so.
    video = make_video(tmp_path / "video.ts", 12, shift=lambda index: jump * 10 if index >= 45 else 0)
    with Scene(video, tmp_path / "clips") as scene:
        scene.play(44)
        scene.begin("a", 42)
        scene.play(30)
        scene.end("a", 42, 60)
        scene.play(20)
        clip = scene.clip()
    (part,) = clip.parts
    shown = times_s(part.path)
    steps = [round(later - earlier, 3) for earlier, later in itertools.pairwise(shown)]
    # Seven seconds may be a pause of the camera; a day is a clock that was set.
    if jump == 7:
        assert sorted(steps) == [0.1] * (len(steps) - 1) + [7.1]
    else:
        assert set(steps) == {0.1}
    assert len(shown) == 36


def test_a_file_that_begins_again_is_recorded_over_the_joint(tmp_path: Path) -> None:
    video = make_video(tmp_path / "video.mp4", 4)
    with Scene(video, tmp_path / "clips", is_looped=True) as scene:
        scene.play(38)
        scene.begin("a", 35)
        scene.play(20)
        scene.end("a", 35, 50)
        scene.play(30)
        (part,) = scene.clip().parts
    packets = payloads(video)
    assert payloads(part.path) == packets[20:] + packets[:16]
    assert times_s(part.path) == pytest.approx([index / 10 for index in range(36)])


def test_the_end_of_the_source_ends_its_clips(tmp_path: Path) -> None:
    video = make_video(tmp_path / "video.mp4", 5)
    with Scene(video, tmp_path / "clips") as scene:
        scene.play(45)
        scene.begin("a", 42)
        assert not scene.play(100)
    clip = scene.clip()
    assert clip.notes == ("the run ended",)
    assert is_run_of(payloads(clip.parts[0].path), payloads(video))
    assert payloads(clip.parts[0].path)[-1] == payloads(video)[-1]


def test_a_removed_channel_ends_its_clips(tmp_path: Path) -> None:
    with Scene(make_video(tmp_path / "video.mp4", 5), tmp_path / "clips") as scene:
        scene.play(45)
        scene.begin("a", 42)
        scene.recorder.forget("gate")
        clip = scene.clip()
        assert clip.notes == ("the channel was removed",)
        assert len(times_s(clip.parts[0].path)) >= 10
        with pytest.raises(UsageError, match="records no clips"):
            scene.begin("b", 43)


def test_a_codec_that_mp4_does_not_take_is_refused_with_the_reason(tmp_path: Path) -> None:
    video = make_video(tmp_path / "video.mkv", 2, codec="libvpx")
    with Scene(video, tmp_path / "clips") as scene:
        scene.play(5)
        with pytest.raises(MediaError, match="MP4 takes no vp8"):
            scene.begin("a", 3)


def test_a_channel_without_packets_is_refused_with_the_reason(tmp_path: Path) -> None:
    with Scene(make_video(tmp_path / "video.mp4", 1), tmp_path / "clips") as scene:
        scene.ring = PacketRing()
        scene.recorder.add("pattern", scene.ring, scene.recorder._channels["gate"]._settings)
        with pytest.raises(MediaError, match="no compressed packets"):
            scene.recorder.ask("pattern", "a", 1, None)


def test_a_file_in_the_way_of_the_folder_costs_the_clip_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "clips").write_text("not a folder")
    with Scene(make_video(tmp_path / "video.mp4", 8), tmp_path / "clips" / "gate") as scene:
        scene.play(45)
        scene.end("a", 42, 44)
        scene.play(20)
        clip = scene.clip()
    assert clip.parts == ()
    assert "can't be written" in clip.notes[0]


def test_a_clip_that_is_removed_while_it_is_written_is_no_clip(tmp_path: Path) -> None:
    with Scene(make_video(tmp_path / "video.mp4", 8), tmp_path / "clips") as scene:
        scene.play(45)
        scene.begin("a", 42)
        while not (parts := list((tmp_path / "clips").glob("*.part"))):
            scene.play(1, pause_s=0.05)
        parts[0].unlink()
        scene.end("a", 42, 43)
        scene.play(20)
        clip = scene.clip()
    assert (clip.parts, clip.notes) == ((), ("was removed while it was written",))
    assert list((tmp_path / "clips").iterdir()) == []


def test_two_recordings_that_begin_with_the_same_key_frame_have_a_file_each(tmp_path: Path) -> None:
    with Scene(make_video(tmp_path / "video.mp4", 16, gop=160), tmp_path / "clips") as scene:
        scene.play(45)
        scene.begin("a", 42)
        scene.play(10)
        scene.end("a", 42, 50)
        scene.play(20)
        first = scene.clip()
        scene.begin("b", 70)
        scene.play(20)
        scene.end("b", 70, 80)
        scene.play(20)
        second = scene.clip()
    (one,), (other,) = first.parts, second.parts
    assert one.path != other.path
    assert (one.start_ns, first.notes, second.notes) == (other.start_ns, (), ())
    assert assert_decodes_to_its_end(one.path) < assert_decodes_to_its_end(other.path)
