"""Settings from the environment: prefix TICKMIND_, and from files for what is secret.

`TICKMIND_X_FILE=/run/secrets/x` gives TICKMIND_X the content of that file. A server is named by
a URL, or by parts, so that no password needs encoding.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote, urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from tickmind.errors import ConfigurationError
from tickmind.files import read_text
from tickmind.hosts import Host, HostOrSocket
from tickmind.limits import Limit, parse_limits
from tickmind.profiles import ANY_SERVER, PROFILES

__all__ = [
    "MOST",
    "PREFIX",
    "BrokerSettings",
    "DatabaseSettings",
    "EmbeddingSettings",
    "HealthSettings",
    "Settings",
    "SslMode",
    "load",
    "naming",
]

PREFIX = "TICKMIND_"
_DEFAULT_PROFILE = "gemini-embedding-001"
_PROFILE = PROFILES[_DEFAULT_PROFILE]

#: Beyond any number that makes sense here, and within what PostgreSQL's integer holds.
MOST = 2**31 - 1

SslMode = Literal["disable", "prefer", "require", "verify-ca", "verify-full"]


class _FilesSource(PydanticBaseSettingsSource):
    """TICKMIND_<FIELD>_FILE: the value stands in that file, surrounding white space cut."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        variable = f"{PREFIX}{field_name.upper()}_FILE"
        path = os.environ.get(variable)
        # A setting may itself end in _file: its own variable is then no pointer to a secret.
        if path is None or f"{field_name}_file" in self.settings_cls.model_fields:
            return None, field_name, False
        if f"{PREFIX}{field_name.upper()}" in os.environ:
            msg = f"{variable} and {variable.removesuffix('_FILE')} are both set: keep one"
            raise ConfigurationError(msg)
        try:
            return read_text(Path(path)).strip(), field_name, False
        except (OSError, ValueError) as exc:
            # What is no UTF-8 is not quoted: it is a secret, most likely.
            why = "it is not UTF-8" if isinstance(exc, UnicodeDecodeError) else exc
            msg = f"{variable} names {path}, which cannot be read: {why}"
            raise ConfigurationError(msg) from None

    def __call__(self) -> dict[str, Any]:
        found = {}
        for name, field in self.settings_cls.model_fields.items():
            value, key, _ = self.get_field_value(field, name)
            if value is not None:
                found[key] = value
        return found


class Settings(BaseSettings):
    """Root of all settings: frozen, from TICKMIND_ variables and files."""

    # A refused value may be a secret: errors name the variable alone.
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="ignore", hide_input_in_errors=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _utf8(cls, value: Any) -> Any:
        """What of an environment is not UTF-8 comes as lone surrogates, which nothing can send."""
        given = value.get_secret_value() if isinstance(value, SecretStr) else value
        if isinstance(given, str) and not given.isascii():
            try:
                given.encode()
            except UnicodeEncodeError:
                msg = "is not UTF-8"
                raise ValueError(msg) from None
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, _FilesSource(settings_cls)


class DatabaseSettings(Settings):
    """PostgreSQL 15 or newer with pgvector 0.7 or newer."""

    database_url: SecretStr | None = Field(
        None, description="postgresql://user:password@host:5432/name?sslmode=...; or the parts"
    )
    database_host: HostOrSocket = Field(
        "localhost", description="host name, address or socket directory"
    )
    database_port: Annotated[int, Field(ge=1, le=65535)] = 5432
    database_user: str = "tickmind"
    database_password: SecretStr | None = None
    database_name: str = "tickmind"
    database_sslmode: SslMode = Field(
        "prefer", description="as libpq's sslmode; where a CA is named, verify-full unless said"
    )
    database_ca_file: Path | None = Field(None, description="PEM file of the CA to trust")
    database_pool_size: Annotated[int, Field(ge=1, le=1000)] = Field(
        5, description="connections this process keeps"
    )
    database_pool_timeout_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        5.0, description="longest wait for a free connection"
    )
    database_pgbouncer: bool = Field(
        False, description="true behind PgBouncer in transaction mode: no statement is kept"
    )


class BrokerSettings(Settings):
    """RabbitMQ 3.10 to 4.x."""

    amqp_url: SecretStr | None = Field(
        None, description="amqp(s)://user:password@host:5672/vhost; or the parts"
    )
    amqp_host: Host = "localhost"
    amqp_port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        None, description="default 5672, with TLS 5671"
    )
    amqp_user: str = "guest"
    amqp_password: SecretStr = SecretStr("guest")
    amqp_vhost: str = "/"
    amqp_tls: bool = False
    amqp_ca_file: Path | None = Field(None, description="PEM file of the CA to trust")

    def broker_url(self) -> str:
        """The amqp URL, parts encoded."""
        if self.amqp_url is not None:
            url = self.amqp_url.get_secret_value()
            if not url.startswith(("amqp://", "amqps://")):
                msg = "TICKMIND_AMQP_URL must begin with amqp:// or amqps://"
                raise ConfigurationError(msg)
            if self.amqp_tls and not url.startswith("amqps://"):
                msg = (
                    "TICKMIND_AMQP_TLS is true, but TICKMIND_AMQP_URL begins with amqp://, which"
                    " has none: let it begin with amqps://"
                )
                raise ConfigurationError(msg)
            return url
        vhost = "/" if self.amqp_vhost == "/" else "/" + quote(self.amqp_vhost, safe="")
        user = quote(self.amqp_user, safe="")
        password = quote(self.amqp_password.get_secret_value(), safe="")
        host = self.amqp_host.removeprefix("[").removesuffix("]")
        host = f"[{host}]" if ":" in host else host
        scheme, port = ("amqps", 5671) if self.amqp_tls else ("amqp", 5672)
        return f"{scheme}://{user}:{password}@{host}:{self.amqp_port or port}{vhost}"

    def broker_tls(self) -> ssl.SSLContext | None:
        """TLS context for amqps, with the own CA where one is named; None for plain amqp.

        Raises ConfigurationError for a CA that nothing would look at.
        """
        if not self.broker_url().startswith("amqps://"):
            if self.amqp_ca_file is not None:
                msg = (
                    "TICKMIND_AMQP_CA_FILE names a CA, but the connection has no TLS: let the URL"
                    " begin with amqps://, or set TICKMIND_AMQP_TLS"
                )
                raise ConfigurationError(msg)
            return None
        return tls_context(self.amqp_ca_file, "TICKMIND_AMQP_CA_FILE")


def tls_context(ca_file: Path | None, variable: str) -> ssl.SSLContext:
    """A verifying context. Raises ConfigurationError where the CA cannot be read."""
    try:
        return ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    except (OSError, ssl.SSLError) as exc:
        msg = f"{variable} names {ca_file}, which is not a readable PEM certificate: {exc}"
        raise ConfigurationError(msg) from exc


class EmbeddingSettings(Settings):
    """Which embedding space, who computes its vectors, and what they may cost.

    A profile gives the defaults of a provider; any setting of its own overrides it.
    """

    embedding_profile: str = Field(
        _DEFAULT_PROFILE, description="defaults of a provider: " + ", ".join(PROFILES)
    )
    embedding_provider: Literal["openai", "hash"] = Field(
        "openai",
        description="openai: any OpenAI-compatible endpoint; hash: made-up vectors for load tests",
    )
    embedding_base_url: str = Field(
        _PROFILE.base_url,
        description="OpenAI-compatible endpoint, up to and without /embeddings",
        repr=False,  # it may hold a password
    )
    embedding_api_key: SecretStr = Field(SecretStr(""), description="sent as a bearer token")
    embedding_next_api_key: SecretStr = Field(
        SecretStr(""),
        description="sent to the endpoint of another space, while the model is being changed",
    )
    embedding_model: str = _PROFILE.model
    embedding_dimensions: Annotated[int, Field(ge=1, le=1536)] = Field(
        _PROFILE.dimensions, description="width kept; wider vectors are cut to it and renormalised"
    )
    embedding_send_dimensions: bool = Field(
        _PROFILE.send_dimensions,
        description="ask the provider for this width (not every one takes the field)",
    )
    embedding_encoding_format: Literal["float", "base64", "omit"] = Field(
        _PROFILE.encoding_format, description="how vectors are asked for"
    )
    embedding_document_prefix: str = Field(
        _PROFILE.document_prefix, description='put before a memory, e.g. "passage: "'
    )
    embedding_query_prefix: str = Field(
        _PROFILE.query_prefix, description='put before an observation, "query: "'
    )
    embedding_max_inputs: Annotated[int, Field(ge=1, le=2048)] = Field(
        _PROFILE.max_inputs, description="most texts in one request"
    )
    embedding_max_tokens: Annotated[int, Field(ge=0, le=MOST)] = Field(
        _PROFILE.max_tokens, description="most tokens in one request; 0: no such limit"
    )
    embedding_max_bytes: Annotated[int, Field(ge=0, le=MOST)] = Field(
        _PROFILE.max_bytes, description="most bytes in one request; 0: no such limit"
    )
    embedding_max_chars: Annotated[int, Field(ge=16, le=MOST)] = Field(
        _PROFILE.max_chars,
        description="longer texts are embedded in overlapping pieces of this many characters",
    )
    embedding_max_text_tokens: Annotated[int, Field(ge=0, le=MOST)] = Field(
        _PROFILE.max_text_tokens,
        description="a piece has at most this many tokens, as estimated; 0: no such limit",
    )
    embedding_overlap_chars: Annotated[int, Field(ge=0, le=MOST)] = 200
    embedding_timeout_s: Annotated[float, Field(gt=0, le=600)] = 30.0
    embedding_limits: str = Field(
        _PROFILE.limits,
        description="what the provider allows the whole fleet: 3000 texts/min, 1M tokens/min, ...",
    )
    embedding_budget: str = Field(
        "",
        description="name of the budget replicas share; none: the endpoint's host and the model",
    )
    embedding_price: Annotated[float, Field(ge=0, le=1e9)] = Field(
        _PROFILE.price, description="US dollars per million tokens"
    )

    @model_validator(mode="before")
    @classmethod
    def _with_profile(cls, given: Any) -> Any:
        """Fields that nobody set come from the profile.

        Who names another endpoint and no profile does not mean the default one's limits and price.
        """
        if not isinstance(given, dict):
            return given
        implied = ANY_SERVER if "embedding_base_url" in given else _DEFAULT_PROFILE
        name = given.get("embedding_profile", implied)
        if name not in PROFILES:
            msg = f"TICKMIND_EMBEDDING_PROFILE: there is no {str(name)[:40]!r}, but"
            raise ConfigurationError(f"{msg} {', '.join(PROFILES)}")
        return {**PROFILES[name].settings(), **given, "embedding_profile": name}

    @field_validator("embedding_limits")
    @classmethod
    def _readable(cls, limits: str) -> str:
        parse_limits(limits)
        return limits

    def limits(self) -> tuple[Limit, ...]:
        """What the provider allows the whole fleet."""
        return parse_limits(self.embedding_limits)

    def budget_name(self) -> str:
        """Whose budget it is: one per provider project and model."""
        # Not the whole authority: it may hold a password.
        host = urlsplit(self.embedding_base_url).netloc.rpartition("@")[2]
        return self.embedding_budget or f"{host} {self.embedding_model}"

    @field_validator("embedding_api_key", "embedding_next_api_key")
    @classmethod
    def _one_line(cls, key: SecretStr) -> SecretStr:
        trimmed = key.get_secret_value().strip()
        if not trimmed.isprintable():
            msg = "holds a line break or a control character inside: paste the key alone"
            raise ValueError(msg)
        return SecretStr(trimmed)


class HealthSettings(Settings):
    """Where /livez, /readyz and /metrics are served."""

    health_host: Host = "0.0.0.0"
    health_port: Annotated[int, Field(ge=0, le=65535)] = Field(8080, description="0: any free one")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"


S = TypeVar("S", bound=Settings)


@contextmanager
def naming(variable: str) -> Iterator[None]:
    """What is wrong in the block is wrong with what this variable names."""
    try:
        yield
    except ConfigurationError as exc:
        raise ConfigurationError(f"{variable}: {exc}") from exc


def load(settings: type[S], **overrides: Any) -> S:
    """Settings from the environment. Raises ConfigurationError: one sentence per wrong variable,
    never with the value of a secret."""
    try:
        return settings(**overrides)
    except ValidationError as exc:
        faults = []
        for error in exc.errors(include_url=False, include_input=False):
            name = PREFIX + "_".join(str(step) for step in error["loc"][:1]).upper()
            faults.append(f"{name}: {error['msg'].removeprefix('Value error, ')}")
        raise ConfigurationError("; ".join(faults)) from exc
