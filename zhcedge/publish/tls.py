"""TLS towards the broker: the context of one connection, and what its failures mean.

The broker's certificate and its name are always checked: there is no switch against it.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from datetime import datetime, timezone
from pathlib import Path

from zhcedge.core.errors import BrokerError, ConfigError
from zhcedge.core.files import read_regular
from zhcedge.publish.certificates import MAX_FILE_BYTES, file_validity, validity
from zhcedge.publish.settings import BrokerSettings, TlsSettings

# OpenSSL's X509_V_ERR_*, from x509_vfy.h.
_NOT_YET_VALID, _EXPIRED = 9, 10
_UNKNOWN_CA = (18, 19, 20, 21)  # self-signed, self-signed authority, authority not found, not the leaf's
_WRONG_NAME = (62, 64)  # host name, IP address


class BrokerTlsContext(ssl.SSLContext):
    """For one connection: paho has no setting for the name to check, and keeps what went wrong to itself.

    Attributes:
        server_name: what the certificate must be for; empty for what the caller of wrap_socket says.
        connection: the latest one made of it.
    """

    server_name: str = ""
    connection: BrokerTlsSocket | None = None

    # The signature of the base class, with its boolean parameters.
    def wrap_socket(
        self,
        sock: socket.socket,
        server_side: bool = False,
        do_handshake_on_connect: bool = True,
        suppress_ragged_eofs: bool = True,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLSocket:
        name = self.server_name or server_hostname
        wrapped = super().wrap_socket(sock, server_side, do_handshake_on_connect, suppress_ragged_eofs, name, session)
        self.connection = wrapped if isinstance(wrapped, BrokerTlsSocket) else None
        return wrapped


class BrokerTlsSocket(ssl.SSLSocket):
    """Remembers what paho does not tell.

    Attributes:
        certificate: what the broker has shown, in DER; None before the handshake.
        failure: what went wrong: with TLS 1.3 a broker refuses our certificate only after the handshake.
    """

    certificate: bytes | None = None
    failure: OSError | None = None

    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        self.certificate = self.getpeercert(binary_form=True)

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except OSError as error:
            self.failure = error
            raise

    # paho sends nothing else; the base class's type for data is in no module before Python 3.12.
    def send(self, data: bytes | bytearray, flags: int = 0) -> int:  # type: ignore[override]
        try:
            return super().send(data, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except OSError as error:
            self.failure = error
            with contextlib.suppress(OSError, ValueError):  # ValueError: closed
                self.recv(1)  # the reason may have come before the end, unread so far
            raise


def make_context(settings: TlsSettings) -> BrokerTlsContext:
    """Read the files. TLS 1.2 at least. Raises ConfigError naming the one that is wrong."""
    context = BrokerTlsContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = BrokerTlsSocket
    context.server_name = settings.server_name
    if settings.ca_file is None:
        context.load_default_certs()
    else:
        _load_authorities(context, settings.ca_file)
    if settings.certificate_file is not None:
        _load_own(context, settings, settings.certificate_file)
    return context


def _load_authorities(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_verify_locations(cadata=read_regular(path, MAX_FILE_BYTES).decode("ascii", "ignore"))
    except ssl.SSLError as error:
        raise ConfigError(
            "holds no certificate that can be read", where=str(path), fix="name a PEM file in mqtt.tls.ca_file"
        ) from error
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise ConfigError(f"can't be read: {_reason(error)}", where=str(path), fix="correct mqtt.tls.ca_file") from None


def _load_own(context: ssl.SSLContext, settings: TlsSettings, certificate: Path) -> None:
    file_validity(certificate)  # OpenSSL's own words for a file that is none would be "PEM lib"
    key, key_name = settings.key_file, "key_file"
    if key is None:
        key, key_name = certificate, "certificate_file"
    try:
        read_regular(key, MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"can't be read: {_reason(error)}", where=str(key), fix=f"correct mqtt.tls.{key_name}"
        ) from None
    password = settings.key_password()
    was_asked = False

    def give_password() -> str:
        nonlocal was_asked
        was_asked = True
        return password

    try:
        context.load_cert_chain(certificate, key, give_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            what, fix = f"the key does not belong to the certificate {certificate}", "name the key it was made with"
        elif was_asked and not password:
            what, fix = "the key is encrypted", "name the file with its password in mqtt.tls.key_password_file"
        elif was_asked:
            what, fix = "the key can't be decrypted with this password", "correct mqtt.tls.key_password_file"
        else:
            what, fix = "holds no private key that can be read", "name a PEM file in mqtt.tls.key_file"
        raise ConfigError(what, where=str(key), fix=fix) from None  # its text could quote the file
    except (OSError, ValueError) as error:
        raise ConfigError(f"can't be read: {_reason(error)}", where=str(key), fix="check its permissions") from None


def tls_error(settings: BrokerSettings, error: OSError, shown: bytes | None = None) -> BrokerError:
    """What a failed handshake, or a connection that TLS has ended, means.

    Args:
        shown: the broker's certificate in DER, where it has shown one.
    """
    what, fix = _explain(settings, error, shown)
    return BrokerError(what, where=settings.address, fix=fix)


def _explain(settings: BrokerSettings, error: OSError, shown: bytes | None) -> tuple[str, str]:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_verification(settings, error, shown)
    reason = (isinstance(error, ssl.SSLError) and error.reason) or ""
    if "CERTIFICATE_REQUIRED" in reason or (reason.endswith("HANDSHAKE_FAILURE") and not _has_own(settings)):
        if _has_own(settings):
            return "the MQTT broker wants another client certificate", "ask its operator which authority must sign ours"
        return "the MQTT broker wants a client certificate", "name ours in mqtt.tls.certificate_file and key_file"
    if "ALERT" in reason and any(word in reason for word in ("UNKNOWN_CA", "CERTIFICATE", "ACCESS_DENIED")):
        return (
            f"the MQTT broker refuses our certificate ({_words(reason)})",
            "look whether it has expired and whether the broker knows the authority that signed it",
        )
    if reason in ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return "does not speak TLS", "correct mqtt.port (8883 is usual for TLS), or set mqtt.tls.enabled to false"
    if ("PROTOCOL" in reason and "VERSION" in reason) or reason == "UNSUPPORTED_PROTOCOL":
        return "the MQTT broker knows no TLS from version 1.2 on", "renew the broker"
    if isinstance(error, (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError)) or "EOF" in reason:
        return (
            "the MQTT broker hangs up during the TLS handshake",
            "look into its log; it may want a client certificate, or not speak TLS on this port",
        )
    return f"TLS fails ({_words(reason) or _reason(error)})", "see the broker's log"


def _explain_verification(
    settings: BrokerSettings, error: ssl.SSLCertVerificationError, shown: bytes | None
) -> tuple[str, str]:
    now = f"this device's clock says {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC"
    if error.verify_code == _EXPIRED:
        when = f" on {validity(shown).ends:%Y-%m-%d}" if shown else ""
        return f"the MQTT broker's certificate has expired{when}; {now}", "renew it, or set the clock"
    if error.verify_code == _NOT_YET_VALID:
        when = f" before {validity(shown).begins:%Y-%m-%d}" if shown else ""
        return f"the MQTT broker's certificate is not valid{when or ' yet'}; {now}", "set the clock (NTP)"
    if error.verify_code in _WRONG_NAME:
        name = (settings.tls and settings.tls.server_name) or settings.host
        fix = "correct mqtt.host, or write the certificate's name into mqtt.tls.server_name"
        return f"the MQTT broker's certificate is not for {name!r}", fix
    if error.verify_code in _UNKNOWN_CA:
        return (
            "the MQTT broker's certificate is signed by an authority that this device does not know",
            "name that authority's certificate in mqtt.tls.ca_file",
        )
    return f"the MQTT broker's certificate is refused ({error.verify_message})", "check mqtt.tls.ca_file"


def fetch_certificate(host: str, port: int, timeout_s: float) -> bytes | None:
    """The certificate that a server shows, unchecked, in DER, to say what is wrong with it; None when there is none.

    Opens a connection of its own, over which nothing is sent.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=host) as wrapped,
        ):
            return wrapped.getpeercert(binary_form=True)
    except (OSError, ValueError):  # it only adds a date to a message
        return None


def _has_own(settings: BrokerSettings) -> bool:
    return settings.tls is not None and settings.tls.certificate_file is not None


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower()


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
