"""What a configuration names, looked at without running it: files, folders, devices, addresses, packages.

Opens the headers of files only; no stream, no camera device, no connection, and nothing is written.
"""

from __future__ import annotations

import importlib.util
import os
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

from zhcedge.analytics.settings import wanted_labels
from zhcedge.app.broker_settings import check_tls
from zhcedge.app.channels import check_address, check_source, source_options
from zhcedge.app.given_folders import state_folder
from zhcedge.app.passwords import read_password
from zhcedge.app.storage_settings import storage_settings
from zhcedge.app.wiring import batched, label_indices
from zhcedge.backends.registry import DEVICES, ENGINES, RANGES, SINKS, source_factory
from zhcedge.config.channel import ChannelConfig, SinkConfig, SourceConfig
from zhcedge.config.problems import KeyPath, dotted
from zhcedge.config.schema import Config
from zhcedge.core.errors import (
    BackendUnavailableError,
    ConfigError,
    MediaError,
    OutputError,
    SourceMissingError,
    ZhcEdgeError,
)
from zhcedge.core.files import read_regular
from zhcedge.core.requests import SourceOptions
from zhcedge.media.connection import check_camera
from zhcedge.media.demux import Demuxer
from zhcedge.media.images import common_size, list_images
from zhcedge.media.pattern import parse_pattern
from zhcedge.models.bundle import load_bundle
from zhcedge.profiles import Profile, profile

Fault = tuple[KeyPath, ZhcEdgeError]

_MAX_CA_BYTES = 16 * 1024 * 1024


def faults(config: Config, has: Callable[[KeyPath], bool]) -> Iterator[Fault]:
    """What is not there, or can't be, with the key path that names it. Blocks: reads the bundle and files' headers.

    Args:
        has: whether the value at a key path is one to look at; the others were not readable.
    """
    yield from (fault for fault in _all_faults(config, has) if has(fault[0]))


def _all_faults(config: Config, has: Callable[[KeyPath], bool]) -> Iterator[Fault]:
    yield from _model_faults(config, has)
    for name, channel in config.channels.items():
        yield from _channel_faults(config, ("channels", name), channel)
    if has(("profile",)):
        yield from _backend_faults(config, profile(config.profile))
    yield from _storage_faults(config)
    if config.mqtt.enabled:
        key: KeyPath = ("mqtt", "password_file")
        yield from _caught(key, read_password, config.mqtt.password_file, dotted(key))
        yield from _caught(("mqtt", "tls"), check_tls, config)


def _storage_faults(config: Config) -> Iterator[Fault]:
    keeps = any(channel.clips.enabled or channel.snapshots.enabled for channel in config.channels.values())
    # Whoever checks is not started by systemd, which would give the daemon a folder.
    if keeps and storage_settings(config) is None and state_folder(os.environ) is None:
        fix = "set it, or start the daemon by systemd"
        yield ("storage", "dir"), ConfigError("clips and snapshots need a folder", where="storage.dir", fix=fix)


def _model_faults(config: Config, has: Callable[[KeyPath], bool]) -> Iterator[Fault]:
    key: KeyPath = ("model", "bundle")
    if not has(key):
        return
    try:
        facts = load_bundle(config.model.bundle).facts
    except ZhcEdgeError as error:
        yield key, error
        return
    for where, wanted in ((("model", "labels"), config.model.labels or ()), *wanted_labels(config)):
        yield from _caught(where, label_indices, wanted, facts.labels, dotted(where))
    if has(("profile",)):
        yield from _caught(("pipeline", "batch"), batched, facts, config.pipeline.batch, profile(config.profile))


def _channel_faults(config: Config, key: KeyPath, channel: ChannelConfig) -> Iterator[Fault]:
    yield from _source_faults((*key, "source"), channel.source)
    for index, sink in enumerate(channel.sinks):
        where = (*key, "sinks", index)
        yield from _caught((*where, "kind"), profile(config.profile).sink, sink.kind)
        if sink.path is not None:
            yield from _caught((*where, "path"), _check_output, config.output_dir / sink.path, sink)
        else:
            yield from _caught((*where, "url"), check_address, sink.url or "", SourceOptions(), dotted(where))


def _source_faults(key: KeyPath, source: SourceConfig) -> Iterator[Fault]:
    options = SourceOptions()
    try:
        options = source_options(source, dotted((*key, "password_file")))
    except ConfigError as error:
        yield (*key, "password_file"), error
    if source.ca_file is not None:
        yield from _caught((*key, "ca_file"), _check_certificates, source.ca_file)
    yield from _caught((*key, "uri"), _look_at, source, options, dotted((*key, "uri")))


def _look_at(source: SourceConfig, options: SourceOptions, where: str) -> None:
    """Raise what is wrong with what the address names."""
    if source.kind == "pattern":
        parse_pattern(source.uri, where)
    elif source.kind == "stream":
        check_address(source.uri, options, where)
        check_camera(source.uri, where)
    elif source.clip is not None or source.kind == "file":
        check_source(source)
        if source.clip is None:
            Demuxer(source.uri, source.uri).close()
    else:
        common_size(list_images(Path(source.uri), source.uri), str)


def _check_certificates(file: Path) -> None:
    try:
        text = read_regular(file, _MAX_CA_BYTES).decode("ascii", "ignore")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except ssl.SSLError as error:
        raise ConfigError("holds no certificate that can be read", where=str(file), fix="name a PEM file") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name, or no text at all
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise ConfigError(f"can't be read: {reason}", where=str(file), fix="check the path") from error


def _check_output(path: Path, sink: SinkConfig) -> None:
    """See that the sink could write there; folders that are missing are made by the sink. Raises OutputError."""
    folder = path if sink.kind == "jpeg" else path.parent
    try:
        if sink.kind != "jpeg" and path.exists() and not path.is_file():
            raise OutputError("is not a regular file", where=str(path), fix="choose another output name")
        while not os.path.lexists(folder) and folder != folder.parent:
            folder = folder.parent
        if not folder.is_dir():
            raise OutputError("is no folder", where=str(folder), fix="choose another place")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise OutputError("may not be written to", where=str(folder), fix="check its permissions, or the mount")
    except (OSError, ValueError) as error:  # a name too long, a folder above that may not be entered
        raise OutputError(f"can't be used: {error}", where=str(path), fix="choose another place") from error


def _backend_faults(config: Config, chosen: Profile) -> Iterator[Fault]:
    """Packages that the profile's backends need: each backend's module is imported, no device is opened."""
    channels = config.channels.values()
    lookups: list[tuple[Callable[..., object], str]] = [
        (DEVICES.get, chosen.device),
        (ENGINES.get, chosen.engine),
        (_check_package, "onnxruntime"),
        *((source_factory, chosen.sources[channel.source.kind]) for channel in channels),
        *((SINKS.get, chosen.sinks[sink.kind]) for one in channels for sink in one.sinks if sink.kind in chosen.sinks),
    ]
    said = set()
    for look, name in lookups:
        for key, error in _caught(("profile",), look, name):
            if str(error) not in said:  # one package lacks in many places
                said.add(str(error))
                yield key, error
    if config.pipeline.nvtx:
        yield from _caught(("pipeline", "nvtx"), RANGES.get("nvtx"))


def _check_package(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        raise BackendUnavailableError(f"{name} is not installed", fix="pip install 'zhcedge[cpu]'")


def _caught(key: KeyPath, look: Callable[..., object], *arguments: object) -> Iterator[Fault]:
    try:
        look(*arguments)
    except (ConfigError, SourceMissingError, MediaError, OutputError, BackendUnavailableError) as error:
        yield key, error
