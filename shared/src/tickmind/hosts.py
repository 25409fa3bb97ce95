"""Names of hosts in settings: told apart from what no resolver takes before anything connects."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

from pydantic import AfterValidator

__all__ = ["Host", "HostOrSocket", "names_host"]

# What stands in no name of a host, and would be read as another part of a URL.
_NO_HOST = re.compile(r"[\s/?#@\\%\x00-\x1f\x7f]")


def names_host(host: str) -> bool:
    """Whether a resolver could be asked for it: a name, or an address (IPv6 in brackets or not)."""
    bare = host.removeprefix("[").removesuffix("]")
    if ":" in bare or bare != host:
        try:
            return ipaddress.ip_address(bare).version == 6
        except ValueError:
            return False
    try:
        # As the resolver does it, which otherwise says so only when it is asked: an empty or too
        # long label is no OSError. Some letters come out as others, even as a blank.
        asked = host.encode("idna").decode()
    except UnicodeError:
        return False
    return bool(asked) and not _NO_HOST.search(host) and not _NO_HOST.search(asked)


def _host(host: str) -> str:
    if not names_host(host):
        msg = "is no host name or address"
        raise ValueError(msg)
    return host


def _host_or_socket(host: str) -> str:
    return host if host.startswith("/") else _host(host)


Host = Annotated[str, AfterValidator(_host)]
HostOrSocket = Annotated[str, AfterValidator(_host_or_socket)]
