"""The client and the recorder by odd names, over IPv6 and TLS."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.proxy import door
from tests.recording import recorder, until_remembered
from tests.running import running
from tickmind import MemoryClient
from tickmind.database import Database
from tickmind.local.rabbitmq import LocalRabbitmq
from tickmind.settings import BrokerSettings, DatabaseSettings

#: case 44.
_ODD = "~,>?@:/#%&"
_VHOST = "a/b%c d"
_CERTIFICATES = Path(__file__).parent.parent / "certificates"
_TALK = {"agent": "bob", "action": "talk", "speech": "The market sells fresh fish"}


@pytest.fixture
async def odd_broker(rabbitmq: LocalRabbitmq) -> AsyncIterator[BrokerSettings]:
    """A user and a virtual host whose names are hard to write."""
    await rabbitmq.rabbitmqctl(
        "eval",
        f'ok = rabbit_vhost:add(<<"{_VHOST}">>, <<"guest">>),'
        f' ok = rabbit_auth_backend_internal:add_user(<<"{_ODD}">>, <<"{_ODD}">>, <<"guest">>),'
        f' rabbit_auth_backend_internal:set_permissions(<<"{_ODD}">>, <<"{_VHOST}">>,'
        f' <<".*">>, <<".*">>, <<".*">>, <<"guest">>).',
    )
    yield BrokerSettings(amqp_user=_ODD, amqp_password=SecretStr(_ODD), amqp_vhost=_VHOST)
    await rabbitmq.rabbitmqctl(
        "eval",
        f'rabbit_vhost:delete(<<"{_VHOST}">>, <<"guest">>),'
        f' rabbit_auth_backend_internal:delete_user(<<"{_ODD}">>, <<"guest">>).',
    )


async def test_connects_with_odd_names_over_ipv6_and_tls(
    database: Database,
    database_settings: DatabaseSettings,
    rabbitmq: LocalRabbitmq,
    odd_broker: BrokerSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """cases 39 and 44: the client and the recorder, each with its own library; a CA of one's own;
    another CA is refused."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(_CERTIFICATES / "server.pem")
    server = ("127.0.0.1", rabbitmq.port)
    async with (
        door(server, host="::1") as plain,
        door(server, host="::1", tls=tls) as secret,
    ):
        ways: list[dict[str, object]] = [
            {"amqp_host": "::1", "amqp_port": plain.port},
            {
                "amqp_host": "[::1]",
                "amqp_port": secret.port,
                "amqp_tls": True,
                "amqp_ca_file": _CERTIFICATES / "ca.pem",
            },
        ]
        for tick, way in enumerate(ways):
            settings = BrokerSettings.model_validate(odd_broker.model_dump() | way)
            # By a URL made of the parts, and by the parts from the environment.
            for name, value in settings.model_dump(exclude_unset=True).items():
                told = value.get_secret_value() if isinstance(value, SecretStr) else value
                if told is not None:
                    monkeypatch.setenv(f"TICKMIND_{name.upper()}", str(told))
            async with running(recorder(database_settings, settings)), MemoryClient() as memory:
                receipt = await memory.publish_tick("town-7", tick, [_TALK])
                assert receipt.confirmed, way
                await until_remembered(database, tick + 1)
        monkeypatch.setattr("tickmind.client._FIRST_CONNECTION_S", 0.1)
        stranger = _CERTIFICATES / "other-ca.pem"
        monkeypatch.setenv("TICKMIND_AMQP_CA_FILE", str(stranger))
        async with MemoryClient() as memory:
            receipt = await memory.publish_tick("town-7", 9, [_TALK], timeout_s=1)
            assert (receipt.confirmed, receipt.reason) == (False, "connection")
        distrusting = settings.model_copy(update={"amqp_ca_file": stranger})
        distrusted = recorder(database_settings, distrusting)
        fault = await distrusted.needs["broker"]()
        await distrusted.close()
        assert fault is not None
        assert "certificate verify failed" in fault
        assert _ODD not in fault
