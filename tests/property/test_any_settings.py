"""Every variable with anything in it: taken, or refused in one sentence that names it."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from tickmind.connecting import url_for
from tickmind.database import Database
from tickmind.errors import ConfigurationError
from tickmind.hosts import names_host
from tickmind.service import App
from tickmind.settings import PREFIX, Settings, load
from tickmind_embedder.app import create_app as create_embedder
from tickmind_embedder.settings import EmbedderSettings
from tickmind_recorder.app import create_app as create_recorder
from tickmind_recorder.settings import RecorderSettings
from tickmind_retriever.app import create_app as create_retriever
from tickmind_retriever.settings import RetrieverSettings

_SERVICES: tuple[tuple[type[Settings], Callable[[Any], App]], ...] = (
    (RecorderSettings, create_recorder),
    (EmbedderSettings, create_embedder),
    (RetrieverSettings, create_retriever),
)
#: Field: the service in which it is tried, the first that has it.
_FIELDS: dict[str, int] = {}
for _place, (_settings, _) in enumerate(_SERVICES):
    for _field in _settings.model_fields:
        _FIELDS.setdefault(_field, _place)

#: For every variable.
_GARBAGE = (
    *("", " ", "garbage", "-1", "0", "1.5", "[]", "\n", "1e400", "nan", "inf"),
    *("9" * 30, "9" * 5000, "\u202e", "/nonexistent/geheim"),
    "\udcff\udcfe",  # what an environment holds that is not UTF-8
)
_NUMBERS = (
    "-inf",
    "-" + "9" * 400,
    "0x10",
    "١٢",
    "１２",
    "1_000",
    "1__0",
    "+1",
    " 7 ",
    "1e3",
    "true",
)
_HOSTS = ("a" * 70, "a..b", ".", "a b", "a/b@c?d#e", "[::1", "::1", "::g", "[a]", "a%b", "h:99999")
#: For those whose names end so.
_MORE: dict[str, tuple[str, ...]] = {
    "host": _HOSTS,
    "base_url": (
        *("http://[", "http://a..b/", "https://h:99999/v1", "http://h:x/", "https://", "ftp://h/"),
        *("http://u:geheim@h/v1?x=y#z", "http://[::1]:1/v1", "http://[a]/v1", "http://a b/"),
    ),
    "amqp_url": (
        *("amqp://", "amqp://[::1", "amqp://h:99999/", "amqp://h/?heartbeat=x", "amqps://a..b/"),
        *("amqp://h/?happy_eyeballs_delay=x", "amqp://h/?timeout=1e9", "amqp://u:geheim@h:p/"),
        *("amqp://h/%ff", "amqp://h/?heartbeat=-1", "amqps://h/?cadata=geheim"),
    ),
    "database_url": (
        *(
            "postgresql://",
            "postgresql://h:99999999/d",
            "postgresql://h:0/d",
            "postgresql://a..b/d",
        ),
        *("postgresql://h/d?sslmode=geheim", "postgresql://h/d?sslmode=require&sslmode=disable"),
        *("postgresql://h/d?x=y", "postgresql://[::1/d", "postgresql://u:geheim@h:port/d"),
        *("sqlite://", "postgresql://h/d?host=geheim..x", "postgresql://h/d?sslrootcert=geheim"),
    ),
    "_file": ("/", "/dev/null", "/etc/hostname", "x" * 5000),
    "limits": (
        *("3000 texts/min, x", "9" * 400 + " texts/min", "1 calls/1.2.3s", "1 calls/0s"),
        *("0 texts/s", "1__0 texts/min", "1 texts/" + "9" * 400 + "s"),
    ),
}


def _values(field: str) -> tuple[str, ...]:
    kind, _ = _SERVICES[_FIELDS[field]]
    numeric = any("maximum" in branch for branch in _branches(kind, field))
    more = [values for ending, values in _MORE.items() if field.endswith(ending)]
    return (*_GARBAGE, *(_NUMBERS if numeric else ()), *(one for values in more for one in values))


@functools.cache
def _schema(kind: type[Settings]) -> dict[str, Any]:
    properties: dict[str, Any] = kind.model_json_schema()["properties"]
    return properties


def _branches(kind: type[Settings], field: str) -> list[dict[str, Any]]:
    schema = _schema(kind)[field]
    branches: list[dict[str, Any]] = schema.get("anyOf", [schema])
    return branches


def _tried(monkeypatch: pytest.MonkeyPatch, field: str, value: str) -> None:
    """Wire the whole service with this in the variable; what it says, if it refuses, is judged."""
    variable = PREFIX + field.upper()
    kind, create_app = _SERVICES[_FIELDS[field]]
    monkeypatch.setenv(variable, value)
    try:
        create_app(load(kind))
    except ConfigurationError as exc:
        told = str(exc)
        assert variable in told, f"{variable}={value[:80]!r}: {told[:300]}"
        assert "\n" not in told or "\n" in value, told
        assert len(told) < 1000 + ("_FILE" in variable) * len(value), (
            f"{variable}={value[:80]!r}: {len(told)} characters"
        )
        if _is_secret(kind, field):
            assert "geheim" not in told
    except Exception as exc:
        msg = f"{variable}={value[:80]!r}: {type(exc).__name__}: {str(exc)[:300]}"
        raise AssertionError(msg) from exc


def _is_secret(kind: type[Settings], field: str) -> bool:
    annotation = kind.model_fields[field].annotation
    return annotation is SecretStr or SecretStr in getattr(annotation, "__args__", ())


@pytest.mark.parametrize("field", _FIELDS)
def test_garbage_in_a_variable_is_told_by_its_name(
    monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    for value in _values(field):
        _tried(monkeypatch, field, value)


@settings(
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    field=st.sampled_from(sorted(_FIELDS)),
    value=st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"])),
)
def test_any_text_in_a_variable_is_told_by_its_name(
    monkeypatch: pytest.MonkeyPatch, field: str, value: str
) -> None:
    """What needs no service to be told."""
    kind, _ = _SERVICES[_FIELDS[field]]
    variable = PREFIX + field.upper()
    with monkeypatch.context() as environment:
        environment.setenv(variable, value)
        try:
            loaded = load(kind)
            if field == "amqp_url" or field == "amqp_host":
                url_for(loaded, name="test")  # type: ignore[arg-type]
            if field.startswith("database"):
                Database(loaded, application="test")  # type: ignore[arg-type]
        except ConfigurationError as exc:
            if variable not in str(exc):
                pytest.fail(str(exc))


@pytest.mark.parametrize("field", _FIELDS)
def test_a_file_that_is_none_is_told_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, field: str
) -> None:
    kind, _ = _SERVICES[_FIELDS[field]]
    if f"{field}_file" in kind.model_fields:
        pytest.skip("the variable names a file itself")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    variable = f"{PREFIX}{field.upper()}_FILE"
    for path in ("", "/nonexistent", str(tmp_path), str(tmp_path / "bytes"), "x" * 5000, "\udcff"):
        monkeypatch.setenv(variable, path)
        with pytest.raises(ConfigurationError, match=variable):
            load(kind)


@pytest.mark.parametrize("field", _FIELDS)
def test_every_number_has_its_bounds(field: str) -> None:
    """So that none ends in an integer of PostgreSQL, or a clock, that cannot hold it."""
    kind, _ = _SERVICES[_FIELDS[field]]
    for branch in _branches(kind, field):
        if branch.get("type") in ("integer", "number"):
            highest = branch.get("maximum", branch.get("exclusiveMaximum", math.inf))
            lowest = branch.get("minimum", branch.get("exclusiveMinimum", -math.inf))
            assert highest < 2**53, field
            assert lowest >= 0, field


@given(st.text(max_size=300) | st.ip_addresses().map(str))
def test_what_names_a_host_can_be_asked_for(host: str) -> None:
    """The resolver takes it, or says no in its own way: it raises nothing that is no OSError."""
    if not names_host(host):
        return
    assert "/" not in host
    assert "@" not in host
    host.removeprefix("[").removesuffix("]").encode("idna")


@pytest.mark.parametrize(
    "host",
    ["localhost", "127.0.0.1", "::1", "[::1]", "fe80::1%eth0", "db.example.com.", "a_b", "鱼.cn"],
)
def test_hosts_that_are_in_use_are_taken(host: str) -> None:
    assert names_host(host)


async def test_a_host_that_nobody_has_is_told_by_readiness(monkeypatch: pytest.MonkeyPatch) -> None:
    """What looks like a host and is none is a fault in words, not the end of the process."""
    for name in ("DATABASE_HOST", "AMQP_HOST"):
        monkeypatch.setenv(PREFIX + name, "nobody.invalid")
    for kind, create_app in _SERVICES:
        app = create_app(load(kind))
        faults = await asyncio.gather(*(check() for check in app.needs.values()))
        assert all(faults)
