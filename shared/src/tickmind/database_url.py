"""Where PostgreSQL is, and how it is to be reached: a URL or single settings, for the driver."""

from __future__ import annotations

import ssl
from typing import Any, get_args

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from tickmind.errors import ConfigurationError
from tickmind.hosts import names_host
from tickmind.settings import DatabaseSettings, SslMode, tls_context

__all__ = ["address"]

_SSL_MODES = get_args(SslMode)


def _tls(mode: str, ca_file: Any, *, of_url: bool) -> ssl.SSLContext | str:
    """libpq's sslmode for asyncpg: its own words for the lax ones, a context with a CA.

    `of_url`: the URL names the CA. Raises ConfigurationError for one that cannot be read.
    """
    if mode in ("disable", "prefer") or (mode == "require" and ca_file is None):
        return mode
    try:
        context = tls_context(ca_file, "TICKMIND_DATABASE_CA_FILE")
    except ConfigurationError:
        if not of_url:
            raise
        msg = "TICKMIND_DATABASE_URL: sslrootcert names no readable PEM certificate"
        raise ConfigurationError(msg) from None  # of a URL nothing is repeated
    context.check_hostname = mode == "verify-full"
    return context


def address(settings: DatabaseSettings) -> tuple[URL, dict[str, Any]]:
    """SQLAlchemy URL and asyncpg arguments. Raises ConfigurationError."""
    ca_file = settings.database_ca_file
    mode = settings.database_sslmode if "database_sslmode" in settings.model_fields_set else None
    if settings.database_url is None:
        password = settings.database_password
        url = URL.create(
            "postgresql+asyncpg",
            username=settings.database_user,
            password=password.get_secret_value() if password else None,
            host=settings.database_host.removeprefix("[").removesuffix("]"),
            port=settings.database_port,
            database=settings.database_name,
        )
    else:
        try:
            url = make_url(settings.database_url.get_secret_value())
        except (ArgumentError, ValueError):  # the cause would print the password
            msg = "TICKMIND_DATABASE_URL must look like postgresql://user:password@host:5432/name"
            raise ConfigurationError(msg) from None
        if url.get_backend_name() not in ("postgresql", "postgres"):
            msg = "TICKMIND_DATABASE_URL must begin with postgresql://"
            raise ConfigurationError(msg)
        url = url.set(drivername="postgresql+asyncpg")
        _check(url)
    arguments: dict[str, Any] = {}
    query = dict(url.query)
    given_mode = query.pop("sslmode", mode)
    ca_of_url = "sslrootcert" in query
    given_ca = query.pop("sslrootcert", ca_file)
    if given_mode is None:  # who names a CA wants it to be looked at
        given_mode = settings.database_sslmode if given_ca is None else "verify-full"
    socket_dir = query.pop("host", None)
    if query:
        msg = f"TICKMIND_DATABASE_URL: unknown parameter {', '.join(sorted(query))}"
        raise ConfigurationError(msg)
    url = url.set(query={})
    host = str(socket_dir or url.host or "localhost")
    if host.startswith("/"):
        arguments["host"] = host
        url = url.set(host=None)
        given_mode = "disable"  # a Unix socket knows no TLS
    arguments["ssl"] = _tls(str(given_mode), given_ca, of_url=ca_of_url)
    return url, arguments


def _check(url: URL) -> None:
    """What the driver would only tell when it connects, and not by its kind. Raises
    ConfigurationError."""
    if url.host and not names_host(url.host):
        msg = "TICKMIND_DATABASE_URL names no host that there could be"
        raise ConfigurationError(msg)
    if url.port is not None and not 1 <= url.port <= 65535:
        msg = "TICKMIND_DATABASE_URL: the port must be between 1 and 65535"
        raise ConfigurationError(msg)
    for name, value in url.query.items():
        if not isinstance(value, str):
            msg = f"TICKMIND_DATABASE_URL: {name} is there twice"
            raise ConfigurationError(msg)
    if url.query.get("sslmode", _SSL_MODES[0]) not in _SSL_MODES:
        msg = f"TICKMIND_DATABASE_URL: sslmode must be one of {', '.join(_SSL_MODES)}"
        raise ConfigurationError(msg)
