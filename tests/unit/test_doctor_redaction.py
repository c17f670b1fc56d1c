"""What leaves the device in a report: no secret in any form, no host, and everything else as it was."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.app.doctor_redaction import Redactor
from zhcedge.app.doctor_secrets import redactor_of
from zhcedge.app.last_good import LastGood
from zhcedge.config.load import load

KEY = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49AgEG\n-----END PRIVATE KEY-----\n"


def configured(folder: Path, text: str, **environ: str) -> Redactor:
    path = folder / "config.yaml"
    path.write_text(text)
    return redactor_of(path, environ, shows_hosts=False)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Z"]), min_size=6, max_size=40))
def test_a_known_secret_is_found_in_every_form(secret: str) -> None:
    redactor = Redactor([secret], shows_hosts=True)
    for text in (f"login with {secret}", f"x{secret}x", repr(secret), json.dumps(secret, ensure_ascii=False)):
        assert secret not in redactor.clean(text)
    encoded = quote(secret, safe="")
    assert encoded not in redactor.clean(f"GET /?x={encoded}&y=1")


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("opening rtsp://viewer:pa/ss@w0rd@cam/1", "w0rd"),
        ("opening rtsp://viewer:hunter22@cam/1", "viewer"),
        ("GET /stream?token=abcdef0123 HTTP/1.1", "abcdef0123"),
        ("Authorization: Basic dmlld2VyOmh1bnRlcjI=", "dmlld2VyOmh1bnRlcjI="),
        ("auth failed: Bearer eyJhbGciOi.x.y", "eyJhbGciOi"),
        (f"the key:\n{KEY}", "MIGHAgEAMBMGByqGSM49AgEG"),
        (f"cut off:\n{KEY[:50]}", "MIGHAgEAMBMG"),
    ],
)
def test_what_looks_like_a_secret_is_taken_out_unknown(text: str, secret: str) -> None:
    assert secret not in Redactor([], shows_hosts=True).clean(text)


def test_a_host_is_always_replaced_by_the_same_word() -> None:
    redactor = Redactor([], {"cam.example.org": "<camera-gate>", "10.1.2.3": "<broker-0>"})
    assert redactor.clean("rtsp://cam.example.org:554/1, CAM.example.org and 10.1.2.3.") == (
        "rtsp://<camera-gate>:554/1, <camera-gate> and <broker-0>."
    )
    once, again = redactor.clean("new rtsp://other/1"), redactor.clean("other again: rtsp://other/2")
    assert "<host-1>" in once
    assert "<host-1>" in again
    assert "other" not in once
    assert "fe80::1:2" not in redactor.clean("from fe80::1:2 and [2001:db8::7]:1883")
    assert "db8" not in redactor.clean("from fe80::1:2 and [2001:db8::7]:1883")


def test_what_is_no_address_stays() -> None:
    redactor = Redactor([], {}, ["10.8.0.43"])
    for text in (
        "2026-12-01T12:52:05 TensorRT 10.8.0.43",
        "driver 580.65.06, std::vector, x::y",
        "127.0.0.1:1883, [::1] and localhost, rtsp://127.0.0.1:9/",
        "aa:bb:cc 12:00",
        "version 1.2.3.4.5",
    ):
        assert redactor.clean(text) == text


def test_hosts_stay_where_they_are_wanted() -> None:
    redactor = Redactor(["hunter22"], {"cam": "<camera-gate>"}, shows_hosts=True)
    assert redactor.clean("rtsp://me:hunter22@cam/1 at 10.1.2.3") == "rtsp://***@cam/1 at 10.1.2.3"


@given(st.recursive(st.text(), lambda child: st.lists(child) | st.dictionaries(st.text(), child), max_leaves=5))
def test_no_secret_is_left_anywhere_in_a_value(value: object) -> None:
    redactor = Redactor({"sesame"})
    assert "sesame" not in str(redactor.clean_value({"a": value, "sesame": ["x sesame y", ("sesame",)]}))


def test_keys_stay_where_a_host_has_the_name_of_one() -> None:
    redactor = Redactor([], {"mqtt": "<broker-0>"})
    assert redactor.clean_value({"mqtt.host": "mqtt", "mqtt.port": 1883}) == {
        "mqtt.host": "<broker-0>",
        "mqtt.port": 1883,
    }


def test_a_short_secret_is_hidden_as_a_word_and_does_not_riddle_the_text() -> None:
    assert Redactor(["a1"], shows_hosts=True).clean("a1 and a12, key is a1.") == "*** and a12, key is ***."


def test_secrets_and_hosts_of_the_configuration_are_known(tmp_path: Path) -> None:
    (tmp_path / "mqtt.pass").write_text("t0pSecretWord\n")
    (tmp_path / "own.key").write_text(KEY)
    redactor = configured(
        tmp_path,
        """
        channels:
          gate: {source: {uri: "rtsp://u:p%40ss-word@front.lan/1"}, sinks: [{kind: rtsp, url: "rtsp://x:pushpush@out.lan/"}]}
        mqtt: {host: broker.lan, username: u, password_file: mqtt.pass, fallbacks: [{host: 10.9.8.7}],
               tls: {enabled: true, certificate_file: own.key, key_file: own.key}}
        """,
        ZHC_CHANNELS__YARD='{"source": {"uri": "http://cam2.lan/?pwd=fromEnviron"}}',
    )
    text = "t0pSecretWord p@ss-word p%40ss-word pushpush fromEnviron MIGHAgEAMBMGByqGSM49AgEG front.lan broker.lan"
    cleaned = redactor.clean(f"{text} 10.9.8.7 cam2.lan out.lan")
    for word in (*text.split(), "10.9.8.7", "cam2.lan", "out.lan"):
        assert word not in cleaned
    assert redactor.clean("front.lan, out.lan, broker.lan") == "<camera-gate>, <sink-gate>, <broker-0>"


@pytest.mark.parametrize("fault", ["nonsense: 1", "mqtt: [", "channels: 7"])
def test_secrets_of_a_faulty_configuration_are_known(tmp_path: Path, fault: str) -> None:
    redactor = configured(
        tmp_path,
        f"""
x:
  uri: rtsp://viewer:fa0ltySecret@far.lan/1
  password: writtenInPlace
  host: faultybroker
{fault}
""",
    )
    cleaned = redactor.clean("fa0ltySecret writtenInPlace far.lan faultybroker")
    assert cleaned == "*** *** <configured-0> <configured-1>"


def test_files_that_a_faulty_configuration_names_are_known(tmp_path: Path) -> None:
    (tmp_path / "pass").write_text("fromTheFile\n")
    mqtt = "mqtt: {username: u, password_file: pass, nonsense: 1}"
    redactor = configured(tmp_path, f"channels: {{a: {{source: {{uri: 'pattern:boxes'}}}}}}\n{mqtt}\n")
    assert redactor.clean("with fromTheFile") == "with ***"


def test_secrets_of_the_last_good_configuration_are_known(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text("channels: {a: {source: {uri: 'rtsp://u:formerOne@old.lan/'}}}")
    LastGood(tmp_path / "last-good.json").keep(load(tmp_path / "old.yaml").config)
    redactor = configured(tmp_path, "channels: {a: {source: {uri: 'pattern:boxes'}}}", STATE_DIRECTORY=str(tmp_path))
    cleaned = redactor.clean("formerOne at old.lan")
    assert "formerOne" not in cleaned
    assert "old.lan" not in cleaned


def test_every_file_of_the_credentials_folder_is_a_secret(tmp_path: Path) -> None:
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials/token").write_text("tok-0123456789\n")
    redactor = configured(tmp_path, "channels: {}", CREDENTIALS_DIRECTORY=str(tmp_path / "credentials"))
    assert redactor.clean("with tok-0123456789") == "with ***"


@pytest.mark.parametrize("part", [":", "a:", "::1 ", "//", "rtsp://", "1.1.1.1.", "Basic ", "-----BEGIN ", "cam "])
def test_a_long_line_of_somebody_elses_is_cleaned_at_once(part: str) -> None:
    line = part * (100_000 // len(part)) + "g"  # tried from everywhere it would take days
    cleaned = Redactor(["sesame"], {"cam": "<camera-a>"}).clean(f"{line}\nsesame")
    assert cleaned.endswith("***")
