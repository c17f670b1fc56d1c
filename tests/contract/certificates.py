"""Certificates for tests, made by openssl: an authority and what it signs."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")

_CONFIG = """\
[ca]
default_ca = here
[here]
dir = {folder}
database = {folder}/index.txt
serial = {folder}/serial
new_certs_dir = {folder}
certificate = {folder}/ca.pem
private_key = {folder}/ca.key
default_md = sha256
policy = anything
copy_extensions = none
unique_subject = no
[anything]
commonName = supplied
[leaf]
basicConstraints = CA:FALSE
subjectAltName = {names}
"""


@dataclass(frozen=True)
class Certificate:
    """PEM files: the certificate (followed by nothing else) and its key."""

    chain: Path
    key: Path


class Authority:
    """Signs certificates in a folder of its own, which must be new."""

    def __init__(self, folder: Path, name: str = "Test Authority") -> None:
        folder.mkdir()
        self._folder = folder
        self.file = folder / "ca.pem"
        (folder / "index.txt").touch()
        (folder / "serial").write_text("01\n")
        self._run(
            "req", "-x509", *_NEW_KEY, "-keyout", "ca.key", "-out", "ca.pem", "-days", "400", "-subj", f"/CN={name}"
        )

    def sign(
        self, name: str, names: str = "DNS:localhost,IP:127.0.0.1", *, begins_days: float = -1, ends_days: float = 365
    ) -> Certificate:
        """A certificate with the common name `name` for `names` (subjectAltName), valid between days from now."""
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        config = self._folder / "openssl.cnf"
        config.write_text(_CONFIG.format(folder=self._folder, names=names))
        self._run("req", *_NEW_KEY, "-keyout", key.name, "-out", f"{name}.csr", "-subj", f"/CN={name}")
        dates = ["-startdate", _date(begins_days), "-enddate", _date(ends_days)]
        files = ["-in", f"{name}.csr", "-out", certificate.name]
        self._run("ca", "-batch", "-notext", "-config", config.name, "-extensions", "leaf", *dates, *files)
        return Certificate(certificate, key)

    def encrypt(self, certificate: Certificate, password: str) -> Path:
        """The certificate's key, encrypted."""
        path = certificate.key.with_suffix(".encrypted")
        self._run("pkcs8", "-topk8", "-in", certificate.key.name, "-out", path.name, "-passout", f"pass:{password}")
        return path

    def _run(self, *words: str) -> None:
        done = subprocess.run(["openssl", *words], cwd=self._folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _date(days: float) -> str:
    return f"{datetime.now(timezone.utc) + timedelta(days=days):%Y%m%d%H%M%SZ}"
