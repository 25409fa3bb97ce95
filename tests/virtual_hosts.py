"""Virtual hosts of tests' own."""

from __future__ import annotations

from tickmind.local.rabbitmq import LocalRabbitmq

__all__ = ["add_virtual_hosts"]


async def add_virtual_hosts(rabbitmq: LocalRabbitmq, *names: str) -> None:
    """Make them, for `guest`; many at once, since each rabbitmqctl costs a second."""
    listed = ", ".join(f'<<"{name}">>' for name in names)
    await rabbitmq.rabbitmqctl(
        "eval",
        f'[begin ok = rabbit_vhost:add(Name, <<"guest">>),'
        f' rabbit_auth_backend_internal:set_permissions(<<"guest">>, Name,'
        f' <<".*">>, <<".*">>, <<".*">>, <<"guest">>) end || Name <- [{listed}]].',
    )
