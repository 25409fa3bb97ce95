"""What a pod is told is what its service reads: each environment is loaded by the service's own
settings, Secrets included."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.charts.helm import CI_VALUES, Rendered, refusal, render
from tests.charts.test_manifests import THERE
from tickmind.settings import BrokerSettings, DatabaseSettings, Settings, load
from tickmind_embedder.settings import EmbedderSettings
from tickmind_recorder.settings import RecorderSettings
from tickmind_retriever.settings import RetrieverSettings

SERVICES: dict[str, type[Any]] = {
    "recorder": RecorderSettings,
    "embedder": EmbedderSettings,
    "retriever": RetrieverSettings,
}
#: Passed on for versions of the services that know them.
_LATER = {"embedding_profile", "embedding_limits", "embedding_next_api_key"}
_ODD = "~,>?@:/#%&"
#: As `--set` wants it.
_ODD_SET = _ODD.replace(",", "\\,")

all_values = pytest.mark.parametrize("values", CI_VALUES)


def _containers(rendered: Rendered) -> list[tuple[str, dict[str, Any], type[Settings]]]:
    """Our containers, each with the settings its program reads."""
    found: list[tuple[str, dict[str, Any], type[Settings]]] = []
    for where, _, container in rendered.containers():
        if container["command"] == ["tickmind"]:
            [word] = container["args"]
            found.append((where, container, SERVICES.get(word, DatabaseSettings)))
        elif container["name"] == "recall":
            found.append((where, container, BrokerSettings))
    return found


def _resolved(rendered: Rendered, container: dict[str, Any]) -> dict[str, str]:
    """The container's environment as its process sees it."""
    secrets = {o["metadata"]["name"]: o["stringData"] for o in rendered.of("Secret")}
    found = {}
    for entry in container["env"]:
        if "value" in entry:
            found[entry["name"]] = entry["value"]
        else:
            reference = entry["valueFrom"]["secretKeyRef"]
            secret = secrets.get(reference["name"], {})
            found[entry["name"]] = secret.get(reference["key"], "there-already")
    return found


@all_values
def test_every_variable_is_a_setting_of_its_service(values: str) -> None:
    for where, container, settings in _containers(render(values)):
        names = [entry["name"] for entry in container["env"]]
        assert len(names) == len(set(names)), where
        for name in names:
            if name.startswith("TICKMIND_"):
                assert name.removeprefix("TICKMIND_").lower() in {*settings.model_fields, *_LATER}


@all_values
def test_every_environment_is_taken_by_its_service(
    values: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered = render(values)
    for _, container, settings in _containers(rendered):
        with monkeypatch.context() as patched:
            for name, value in _resolved(rendered, container).items():
                patched.setenv(name, value)
            load(settings)


@all_values
def test_secrets_stand_in_no_plain_variable(values: str) -> None:
    rendered = render(values)
    for where, _, container in rendered.containers():
        for entry in container.get("env", []):
            if any(word in entry["name"] for word in ("PASSWORD", "API_KEY", "SECRET", "TOKEN")):
                assert "value" not in entry, (where, entry["name"])
    passwords = {
        value
        for secret in rendered.of("Secret")
        for key, value in secret["stringData"].items()
        if key != "username"
    }
    elsewhere = repr([o for o in rendered if o["kind"] != "Secret"])
    assert not [password for password in passwords if password in elsewhere]
    assert passwords or values in THERE


def test_odd_passwords_reach_the_services_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """case 44: by parts from Secrets, so nothing needs encoding; an IPv6 host too."""
    rendered = render(
        "external-single",
        "postgresql.users.owner.existingSecret=",
        f"postgresql.users.owner.password={_ODD_SET}",
        "postgresql.external.host=[::1]",
        "postgresql.tls.mode=require",
        "rabbitmq.users.recorder.existingSecret=",
        f"rabbitmq.users.recorder.password={_ODD_SET}",
        "rabbitmq.external.host=[::1]",
        "rabbitmq.vhost=a/b",
    )
    [container] = rendered.one("Deployment", "-recorder")["spec"]["template"]["spec"]["containers"]
    for name, value in _resolved(rendered, container).items():
        monkeypatch.setenv(name, value)
    settings = load(RecorderSettings)
    assert settings.database_password is not None
    assert settings.database_password.get_secret_value() == _ODD
    assert (settings.database_host, settings.database_sslmode) == ("[::1]", "require")
    url = urlsplit(settings.broker_url())
    assert url.hostname == "::1"
    assert unquote(url.password or "") == _ODD
    assert unquote(url.path) == "/a/b"


def _variables(rendered: Rendered, suffix: str, kind: str = "Deployment") -> dict[str, str]:
    objects = [o for o in rendered.of(kind) if suffix in o["metadata"]["name"]]
    [container] = objects[0]["spec"]["template"]["spec"]["containers"]
    return {e["name"]: e.get("value", "") for e in container["env"]}


@pytest.mark.parametrize(
    ("values", "pooler", "server"),
    [
        ("external", "pgbouncer.example.com", "postgres.example.com"),
        ("operators", "t-tickmind-postgresql-pooler", "t-tickmind-postgresql-rw"),
    ],
)
def test_services_go_through_the_pooler_and_the_migration_does_not(
    values: str, pooler: str, server: str
) -> None:
    """case 40: PgBouncer in transaction mode keeps no session, and a migration's lock is one."""
    rendered = render(values)
    for component in SERVICES:
        variables = _variables(rendered, f"-{component}")
        assert variables["TICKMIND_DATABASE_HOST"] == pooler
        assert variables["TICKMIND_DATABASE_PGBOUNCER"] == "true"
    variables = _variables(rendered, "-migrate-", "Job")
    assert variables["TICKMIND_DATABASE_HOST"] == server
    assert "TICKMIND_DATABASE_PGBOUNCER" not in variables


def test_each_service_is_a_user_of_its_own_on_both_servers() -> None:
    for values in ("default", "operators", "external", "gitops"):
        rendered = render(values)
        for variable in ("TICKMIND_DATABASE_PASSWORD", "TICKMIND_AMQP_PASSWORD"):
            sources = [
                entry["valueFrom"]["secretKeyRef"]["name"]
                for _, container, settings in _containers(rendered)
                for entry in container["env"]
                if entry["name"] == variable and settings in SERVICES.values()
            ]
            assert len(set(sources)) == 3, (values, sources)


def test_external_users_that_are_not_named_are_the_owner() -> None:
    for component in SERVICES:
        variables = _variables(render("external-single"), f"-{component}")
        assert variables["TICKMIND_DATABASE_USER"] == "tickmind"


def test_embedding_settings_that_are_not_set_are_left_to_the_service() -> None:
    """A provider's preset can only fill what no variable says otherwise."""
    named = {n for n in _variables(render("operators"), "-embedder") if "_EMBEDDING_" in n}
    assert named == {
        "TICKMIND_EMBEDDING_API_KEY",
        "TICKMIND_EMBEDDING_LIMITS",
        "TICKMIND_EMBEDDING_PROFILE",
        "TICKMIND_EMBEDDING_TIMEOUT_S",
    }


def test_more_specific_settings_win_and_large_numbers_stay_whole() -> None:
    variables = _variables(render("scaled", "config.RECORDER_BATCH_MS=70"), "-recorder")
    assert variables["TICKMIND_RECORDER_BATCH_MS"] == "50"
    variables = _variables(render("scaled"), "-retriever")
    assert variables["TICKMIND_RETRIEVER_CONCURRENCY"] == "64"
    assert variables["TICKMIND_RETRIEVER_CACHED_TEXTS"] == "1000000"


def test_a_ca_that_is_named_is_looked_at() -> None:
    """cases 39 and 44: PostgreSQL's without a mode is verify-full; RabbitMQ's without TLS is
    refused."""
    assert _variables(render("external-single"), "-recorder")["TICKMIND_DATABASE_SSLMODE"] == (
        "prefer"
    )
    rendered = render("external-single", "postgresql.tls.caSecret=ca")
    for suffix, kind in (("-recorder", "Deployment"), ("-migrate-", "Job")):
        assert _variables(rendered, suffix, kind)["TICKMIND_DATABASE_SSLMODE"] == "verify-full"
    told = refusal('rabbitmq.tls.caSecret="ca"')
    assert "nothing would look at it" in told
