"""Settings: where they come from, how servers are named, and that no secret is ever told."""

from __future__ import annotations

import ssl
from pathlib import Path
from urllib.parse import unquote

import pytest
from aio_pika.connection import make_url
from pydantic import SecretStr

from tickmind.broker import create_broker
from tickmind.connecting import url_for
from tickmind.database import Database
from tickmind.database_url import address
from tickmind.errors import ConfigurationError
from tickmind.settings import (
    BrokerSettings,
    DatabaseSettings,
    EmbeddingSettings,
    HealthSettings,
    load,
)
from tickmind_recorder.settings import RecorderSettings

ODD = "~,>?@:/#%&"
_CA = Path(ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt")


@pytest.mark.parametrize("password", [ODD, "geheim", "a b+c", "p%41", "界", "\"'\\"])
@pytest.mark.parametrize("host", ["rabbit", "127.0.0.1", "::1", "[::1]"])
@pytest.mark.parametrize("vhost", ["/", "town", "a/b%c d", "/leading", "界"])
def test_the_brokers_parts_need_no_encoding(password: str, host: str, vhost: str) -> None:
    """case 44: password, host and virtual host reach the driver as they were given."""
    settings = BrokerSettings(
        amqp_host=host, amqp_user=ODD, amqp_password=SecretStr(password), amqp_vhost=vhost
    )

    url = make_url(url_for(settings, name="test"))

    assert (url.scheme, url.host, url.port) == ("amqp", host.strip("[]"), 5672)
    assert (url.user, url.password) == (ODD, password)
    # As the driver reads it: "/" means "/", else what follows it.
    assert unquote(url.raw_path)[1:] == ("" if vhost == "/" else vhost)


def test_the_brokers_port_follows_tls() -> None:
    assert ":5672/" in BrokerSettings().broker_url()
    assert BrokerSettings(amqp_tls=True).broker_url().startswith("amqps://")
    assert ":5671/" in BrokerSettings(amqp_tls=True).broker_url()
    assert ":5680/" in BrokerSettings(amqp_tls=True, amqp_port=5680).broker_url()


def test_a_brokers_url_is_taken_as_it_is_with_our_heartbeat() -> None:
    settings = BrokerSettings(amqp_url=SecretStr("amqp://u:p%40@h:1/a%2Fb?auth=plain"))

    url = make_url(url_for(settings, name="test"))

    assert (url.password, unquote(url.raw_path)) == ("p@", "/a/b")
    assert dict(url.query) == {"auth": "plain", "heartbeat": "10", "name": "tickmind-test"}


def test_a_heartbeat_of_the_operators_own_stays() -> None:
    settings = BrokerSettings(amqp_url=SecretStr("amqp://h/?heartbeat=7"))

    assert make_url(url_for(settings, name="test")).query["heartbeat"] == "7"


@pytest.mark.parametrize("url", ["http://h/", "h:5672", ""])
def test_a_brokers_url_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="TICKMIND_AMQP_URL must begin with amqp"):
        BrokerSettings(amqp_url=SecretStr(url)).broker_url()


def test_plain_amqp_has_no_tls_and_amqps_always_verifies() -> None:
    """case 39: never plaintext, never unverified, where TLS was asked for."""
    assert BrokerSettings().broker_tls() is None
    for settings in (
        BrokerSettings(amqp_tls=True),
        BrokerSettings(amqp_url=SecretStr("amqps://h/")),
        BrokerSettings(amqp_tls=True, amqp_ca_file=_CA),
    ):
        context = settings.broker_tls()
        assert context is not None
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert context.check_hostname


def test_a_ca_that_is_none_is_refused_and_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("not a certificate")

    for name in ("ca.pem", "absent.pem"):
        with pytest.raises(ConfigurationError, match=f"TICKMIND_AMQP_CA_FILE names .*{name}"):
            BrokerSettings(amqp_tls=True, amqp_ca_file=tmp_path / name).broker_tls()
        with pytest.raises(ConfigurationError, match=f"TICKMIND_DATABASE_CA_FILE names .*{name}"):
            Database(
                DatabaseSettings(database_sslmode="verify-full", database_ca_file=tmp_path / name),
                application="test",
            )


@pytest.mark.parametrize("password", [ODD, "p%41", "a b+c", "界"])
@pytest.mark.parametrize("host", ["db", "127.0.0.1", "::1", "[::1]"])
def test_the_databases_parts_need_no_encoding(password: str, host: str) -> None:
    """case 44."""
    settings = DatabaseSettings(
        database_host=host,
        database_port=5433,
        database_user=ODD,
        database_password=SecretStr(password),
        database_name="my db/%",
    )

    url = Database(settings, application="test").engine.url

    assert (url.username, url.password) == (ODD, password)
    assert (url.host, url.port, url.database) == (host.strip("[]"), 5433, "my db/%")


def test_a_databases_url_is_decoded() -> None:
    settings = DatabaseSettings(
        database_url=SecretStr("postgres://u%40:p%25%2F@[::1]:1/d%20b?sslmode=disable")
    )

    url = Database(settings, application="test").engine.url

    assert (url.username, url.password, url.host, url.database) == ("u@", "p%/", "::1", "d b")


@pytest.mark.parametrize("url", ["mysql://h/db", "h/db", "", "postgresql://h:port/db"])
def test_a_databases_url_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="TICKMIND_DATABASE_URL must"):
        Database(DatabaseSettings(database_url=SecretStr(url)), application="test")


def test_a_parameter_that_would_be_ignored_is_refused() -> None:
    settings = DatabaseSettings(database_url=SecretStr("postgresql://h/db?sslmod=require"))

    with pytest.raises(ConfigurationError, match="unknown parameter sslmod"):
        Database(settings, application="test")


@pytest.mark.parametrize("source", ["url", "parts"])
@pytest.mark.parametrize(
    ("mode", "ca", "means"),
    [
        ("disable", False, "disable"),
        ("prefer", False, "prefer"),
        ("prefer", True, "prefer"),
        ("require", False, "require"),
        # As libpq: with a CA, require is verify-ca.
        ("require", True, (ssl.CERT_REQUIRED, False)),
        ("verify-ca", False, (ssl.CERT_REQUIRED, False)),
        ("verify-ca", True, (ssl.CERT_REQUIRED, False)),
        ("verify-full", False, (ssl.CERT_REQUIRED, True)),
        ("verify-full", True, (ssl.CERT_REQUIRED, True)),
    ],
)
def test_sslmode_means_what_libpq_means(source: str, mode: str, ca: bool, means: object) -> None:
    """case 44: a mode asked for is never weakened, wherever it is asked."""
    if source == "url":
        query = f"?sslmode={mode}" + (f"&sslrootcert={_CA}" if ca else "")
        settings = DatabaseSettings(database_url=SecretStr(f"postgresql://h/db{query}"))
    else:
        given = {"database_sslmode": mode} | ({"database_ca_file": _CA} if ca else {})
        settings = DatabaseSettings.model_validate(given)

    tls = address(settings)[1]["ssl"]

    if isinstance(tls, ssl.SSLContext):
        assert (tls.verify_mode, tls.check_hostname) == means
    else:
        assert tls == means


@pytest.mark.parametrize("source", ["url", "parts"])
def test_a_ca_that_is_named_is_looked_at_unless_the_mode_says_otherwise(source: str) -> None:
    """cases 39 and 44: who names a CA and no mode does not get one that ignores it."""
    url = SecretStr(f"postgresql://h/db?sslrootcert={_CA}")
    settings = (
        DatabaseSettings(database_url=url)
        if source == "url"
        else DatabaseSettings(database_ca_file=_CA)
    )
    tls = address(settings)[1]["ssl"]
    assert isinstance(tls, ssl.SSLContext)
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_tls_that_is_asked_for_is_not_lost_by_a_plain_url() -> None:
    """case 39: the one says TLS, the other none: refused, rather than the weaker taken."""
    url = SecretStr("amqp://u:p4ss@h/")
    with pytest.raises(ConfigurationError, match="TICKMIND_AMQP_TLS is true") as refused:
        BrokerSettings(amqp_url=url, amqp_tls=True).broker_url()
    assert "p4ss" not in str(refused.value)
    for settings in (
        BrokerSettings(amqp_url=url, amqp_ca_file=_CA),
        BrokerSettings(amqp_ca_file=_CA),
    ):
        with pytest.raises(ConfigurationError, match="TICKMIND_AMQP_CA_FILE names a CA"):
            settings.broker_tls()


@pytest.mark.parametrize("option", ["no_verify_ssl=1", "cafile=/x", "ssl=0", "ssl_options=x", "x"])
def test_a_brokers_url_cannot_weaken_tls(option: str) -> None:
    """case 39: by what aio-pika or FastStream would read from it."""
    settings = BrokerSettings(amqp_url=SecretStr(f"amqps://u:p4ss@h/v?{option}&heartbeat=7"))
    with pytest.raises(ConfigurationError, match=f"unknown parameter {option.split('=')[0]};"):
        url_for(settings, name="test")
    sound = BrokerSettings(amqp_url=SecretStr("amqps://u:p4ss@h/v?heartbeat=7"))
    assert "heartbeat=7" in url_for(sound, name="test")


def test_a_socket_directory_is_taken_as_libpq_does() -> None:
    for settings in (
        DatabaseSettings(database_url=SecretStr("postgresql://u@/db?host=/run/pg")),
        DatabaseSettings(database_host="/run/pg", database_user="u", database_name="db"),
    ):
        url, arguments = address(settings)
        assert (arguments["host"], arguments["ssl"]) == ("/run/pg", "disable")
        assert (url.username, url.database) == ("u", "db")


def test_a_secret_may_stand_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text(f" {ODD}\n")
    for name in ("AMQP_PASSWORD", "DATABASE_PASSWORD", "AMQP_USER", "DATABASE_PORT"):
        monkeypatch.setenv(f"TICKMIND_{name}_FILE", str(tmp_path / "secret"))
    (tmp_path / "port").write_text("5433\n")
    monkeypatch.setenv("TICKMIND_DATABASE_PORT_FILE", str(tmp_path / "port"))

    settings = load(RecorderSettings)

    assert settings.amqp_password.get_secret_value() == ODD
    assert settings.database_password is not None
    assert settings.database_password.get_secret_value() == ODD
    assert (settings.amqp_user, settings.database_port) == (ODD, 5433)


def test_a_url_may_stand_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "url").write_text("amqp://u:p@h/v\n")
    monkeypatch.setenv("TICKMIND_AMQP_URL_FILE", str(tmp_path / "url"))

    assert load(BrokerSettings).broker_url() == "amqp://u:p@h/v"


def test_a_setting_that_is_itself_a_file_is_no_pointer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TICKMIND_AMQP_CA_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("TICKMIND_RECORDER_POLICY_FILE", str(tmp_path / "policy.yaml"))

    settings = load(RecorderSettings)

    assert settings.amqp_ca_file == tmp_path / "ca.pem"
    assert settings.recorder_policy_file == tmp_path / "policy.yaml"


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_secrets_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "secret").write_bytes(content)
    monkeypatch.setenv("TICKMIND_AMQP_PASSWORD_FILE", str(tmp_path / "secret"))

    with pytest.raises(ConfigurationError, match=r"^TICKMIND_AMQP_PASSWORD_FILE names .*secret"):
        load(BrokerSettings)


def test_a_secret_given_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("x")
    monkeypatch.setenv("TICKMIND_AMQP_PASSWORD_FILE", str(tmp_path / "secret"))
    monkeypatch.setenv("TICKMIND_AMQP_PASSWORD", "y")

    with pytest.raises(ConfigurationError, match="are both set: keep one"):
        load(BrokerSettings)


def test_what_kubernetes_injects_for_a_service_is_not_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """case 46: a Service named rabbitmq gives every pod RABBITMQ_PORT=tcp://…"""
    for name in ("RABBITMQ_PORT", "POSTGRES_PORT", "DATABASE_PORT", "AMQP_PORT", "TICKMIND_PORT"):
        monkeypatch.setenv(name, "tcp://10.0.0.1:5672")

    assert load(RecorderSettings).amqp_port is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_PORT", "tcp://10.0.0.1:5432"),
        ("DATABASE_PORT", "0"),
        ("DATABASE_SSLMODE", "verify"),
        ("AMQP_TLS", "perhaps"),
        ("HEALTH_PORT", "65536"),
        ("LOG_LEVEL", "loud"),
        ("RECORDER_BATCH_DECISIONS", "0"),
        ("RECORDER_PREFETCH", "many"),
    ],
)
def test_a_wrong_setting_is_told_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"TICKMIND_{name}", value)

    with pytest.raises(ConfigurationError, match=f"^TICKMIND_{name}: Input should be") as caught:
        load(RecorderSettings)
    assert "\n" not in str(caught.value)


def test_all_wrong_settings_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKMIND_DATABASE_PORT", "x")
    monkeypatch.setenv("TICKMIND_HEALTH_PORT", "y")

    with pytest.raises(ConfigurationError) as caught:
        load(RecorderSettings)
    assert "TICKMIND_DATABASE_PORT" in str(caught.value)
    assert "TICKMIND_HEALTH_PORT" in str(caught.value)


def test_no_secret_stands_in_a_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        "AMQP_URL": "amqp://u:geheim1@h/",
        "AMQP_PASSWORD": "geheim2",
        "DATABASE_URL": "postgresql://u:geheim3@h/db",
        "DATABASE_PASSWORD": "geheim4",
        "EMBEDDING_API_KEY": "geheim5",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(f"TICKMIND_{name}", value)

    class Everything(RecorderSettings, EmbeddingSettings):
        pass

    settings = load(Everything)
    database = Database(settings, application="test")
    broker = create_broker(settings, name="test", prefetch=1)

    told = "".join(map(repr, (settings, settings.model_dump(), database.engine, broker)))
    told += str(database.engine.url) + settings.model_dump_json()
    assert "geheim" not in told


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", "postgresql://u:geheim@h:port/db"),
        ("DATABASE_URL", "geheim"),
        ("AMQP_URL", "amqp://u:geheim@h:port/"),
        ("AMQP_URL", "geheim"),
        ("EMBEDDING_API_KEY", "geheim\ngeheim"),
    ],
)
def test_no_secret_stands_in_an_error(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"TICKMIND_{name}", value)

    class Everything(RecorderSettings, EmbeddingSettings):
        pass

    def use_them() -> None:
        settings = load(Everything)
        Database(settings, application="test")
        url_for(settings, name="test")

    with pytest.raises(ConfigurationError, match=f"TICKMIND_{name}") as caught:
        use_them()
    error: BaseException | None = caught.value
    while error is not None:  # as a traceback would print it
        assert "geheim" not in str(error)
        error = None if error.__suppress_context__ else error.__context__


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        HealthSettings().health_port = 1  # type: ignore[misc]
