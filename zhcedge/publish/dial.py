"""Opens a connection to a broker, through TLS where that is set, and says in our words why it failed."""

from __future__ import annotations

import contextlib
import socket
import ssl

from zhcedge.core.errors import BrokerError
from zhcedge.publish.refusals import connect_error
from zhcedge.publish.settings import BrokerSettings
from zhcedge.publish.tls import BrokerTlsContext, fetch_certificate, make_context, tls_error
from zhcedge.publish.wire import Client, connect


class Dialer:
    """For one connection."""

    def __init__(self, client: Client, settings: BrokerSettings, protocol: int) -> None:
        self._client, self._settings, self._protocol = client, settings, protocol
        self._context: BrokerTlsContext | None = None

    def dial(self) -> None:
        """TCP, TLS and CONNECT; blocks. Raises BrokerError, and ConfigError for a file of TLS that can't be used."""
        if self._settings.tls is not None:
            self._context = make_context(self._settings.tls)
            self._client.tls_set_context(self._context)
        try:
            connect(self._client, self._settings, self._protocol)
        except (OSError, ValueError) as error:  # ValueError: a name that is no host name
            raise self._explain(error) from error

    @property
    def certificate(self) -> bytes | None:
        """What the broker has shown, in DER; None without TLS."""
        connection = self._context.connection if self._context is not None else None
        return connection.certificate if connection is not None else None

    def late_refusal(self) -> BrokerError | None:
        """Why TLS has ended the connection after the handshake: with TLS 1.3 our certificate is judged only then."""
        connection = self._context.connection if self._context is not None else None
        failure = connection.failure if connection is not None else None
        return tls_error(self._settings, failure) if isinstance(failure, ssl.SSLError) else None

    def cut(self) -> None:
        """End the connection without a goodbye, whether or not the broker reads."""
        plain = self._client.socket()
        if isinstance(plain, socket.socket):
            with contextlib.suppress(OSError):  # it is gone already
                plain.shutdown(socket.SHUT_RDWR)

    def _explain(self, error: OSError | ValueError) -> BrokerError:
        settings = self._settings
        wrapped = self._context.connection if self._context is not None else None
        if wrapped is None or not isinstance(error, OSError):
            return connect_error(settings, error)
        wrapped.close()  # paho has forgotten it
        if isinstance(error, TimeoutError):
            return connect_error(settings, error)
        shown = None
        if isinstance(error, ssl.SSLCertVerificationError):
            shown = fetch_certificate(settings.host, settings.port, settings.connect_timeout_s)
        return tls_error(settings, error, shown)
