"""The configuration of delivery: the MQTT broker, and where messages wait for it."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from zhcedge.config.values import PROBLEM_TYPE, Flag, Line, PathText, Section, Whole

CommandWord = Literal["detect", "threshold", "fps", "snapshot", "rebirth", "cameras", "reload"]
DEFAULT_COMMANDS: tuple[CommandWord, ...] = ("detect", "threshold", "fps", "snapshot", "rebirth")


class CommandsConfig(Section):
    enabled: Flag = Field(default=True, description="whether to take commands over MQTT at all")
    allow: Annotated[
        tuple[CommandWord, ...],
        Field(max_length=16, json_schema_extra={"allowed": f"a list of {', '.join(get_args(CommandWord))}"}),
    ] = Field(
        default=DEFAULT_COMMANDS,
        description="which commands; cameras adds and removes cameras, and reload takes what the configuration says "
        "now, so allow them only where the broker decides who may send them",
    )
    max_bytes: Whole = Field(default=16_384, ge=64, le=262_144, description="a larger command is refused")


class DiscoveryConfig(Section):
    enabled: Flag = Field(default=False, description="whether Home Assistant is told of the device and its entities")
    prefix: str = Field(
        default="homeassistant",
        max_length=128,
        pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$",
        description="first levels of Home Assistant's discovery topics",
        json_schema_extra={"allowed": "topic levels of letters, digits and . _ -, with / between them"},
    )


HostName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9._:%-]{1,253}$", json_schema_extra={"allowed": "a host name or an IP address"}),
]


def _version_text(value: object) -> object:
    # YAML reads `protocol: 5` as a number, and 3.1.1 as text.
    return "5" if type(value) is int and value == 5 else value


class ServerConfig(Section):
    host: HostName = Field(description="the broker's host name or address")
    port: Whole = Field(default=1883, ge=1, le=65_535, description="the broker's TCP port")


class TlsConfig(Section):
    enabled: Flag = Field(default=False, description="whether to speak TLS; the broker's certificate is always checked")
    ca_file: PathText | None = Field(
        default=None,
        description="PEM file of the authorities that may have signed the broker's certificate; null: the system's",
    )
    certificate_file: PathText | None = Field(
        default=None, description="PEM file with this device's certificate and its chain; null: none"
    )
    key_file: PathText | None = Field(
        default=None, description="PEM file with its key; null: it is in certificate_file"
    )
    key_password_file: PathText | None = Field(
        default=None, description="file whose first line is the key's password; null: the key is not encrypted"
    )
    server_name: HostName | None = Field(
        default=None, description="name that the broker's certificate must hold; null: that of the host"
    )

    @model_validator(mode="after")
    def _check_certificate(self) -> TlsConfig:
        if self.certificate_file is None and (self.key_file or self.key_password_file):
            raise PydanticCustomError(PROBLEM_TYPE, "a key needs a certificate_file beside it")
        return self


class MqttConfig(Section):
    enabled: Flag = Field(default=True, description="whether to publish at all")
    host: HostName = Field(default="127.0.0.1", description="the broker's host name or address")
    port: Whole = Field(default=1883, ge=1, le=65_535, description="the broker's TCP port")
    fallbacks: Annotated[
        tuple[ServerConfig, ...],
        Field(max_length=8, json_schema_extra={"allowed": "a list of up to 8 sections with host and port"}),
    ] = Field(default=(), description="brokers to go to, in this order, while the first one does not accept us")
    protocol: Annotated[Literal["auto", "5", "3.1.1"], BeforeValidator(_version_text)] = Field(
        default="auto", description="MQTT version; auto is 5, and 3.1.1 at brokers that refuse 5"
    )
    tls: TlsConfig = Field(default_factory=TlsConfig, description="encryption, and who both sides are")
    username: Line | None = Field(default=None, description="user name at the broker; null connects without one")
    password_file: PathText | None = Field(default=None, description="file whose first line is the password")
    topic_prefix: str = Field(
        default="zhcedge",
        max_length=128,
        pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$",
        description="first levels of every topic",
        json_schema_extra={"allowed": "topic levels of letters, digits and . _ -, with / between them"},
    )
    keepalive_s: Whole = Field(default=30, ge=5, le=3600, description="longest silence towards the broker")
    connect_timeout_s: Whole = Field(default=10, ge=1, le=300, description="longest wait for the broker's answer")
    session_expiry_s: Whole = Field(
        default=60,
        ge=0,
        le=604_800,
        description="how long the broker keeps commands for this device while it is away (MQTT 5); 0: not at all",
    )
    check_delivery: Flag = Field(
        default=True,
        description="on MQTT 3.1.1, wait until the first event has come back: such a broker acknowledges what it "
        "forbids",
    )
    discovery: DiscoveryConfig = Field(default_factory=DiscoveryConfig, description="entities in Home Assistant")
    snapshots: Flag = Field(
        default=False, description="publish pictures: of a camera when it is asked for, of an event when it ends"
    )
    stats_interval_s: Whole = Field(
        default=60, ge=0, le=86_400, description="seconds between two stats messages; 0: none"
    )
    commands: CommandsConfig = Field(default_factory=CommandsConfig, description="what others may ask of this device")

    @model_validator(mode="after")
    def _check_credentials(self) -> MqttConfig:
        # MQTT 3.1.1, 3.1.2.9: without a user name the password flag must be 0.
        if self.password_file is not None and self.username is None:
            raise PydanticCustomError(PROBLEM_TYPE, "password_file needs a username beside it")
        return self


class OutboxConfig(Section):
    dir: PathText | None = Field(
        default=None,
        description="folder on disk for what the broker has not taken within a second; null is $STATE_DIRECTORY, and "
        "without that nothing survives the end of the process",
    )
    memory_dir: PathText | None = Field(
        default=None,
        description="folder in memory (tmpfs) for messages up to that second; null is $RUNTIME_DIRECTORY, else dir",
    )
    max_messages: Whole = Field(default=200_000, ge=1, le=10_000_000, description="most messages that wait")
    max_mb: Whole = Field(default=512, ge=1, le=100_000, description="most disk space that they take")
    max_age_h: Whole = Field(default=168, ge=1, le=8760, description="age after which a message is given up")
