"""Find RabbitMQ on this machine, or have the system's package manager install it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tickmind.errors import ConfigurationError
from tickmind.local.signals import interruptible

__all__ = ["Installer", "ensure_rabbitmq", "find_rabbitmq", "install_command", "installer"]

#: Where Debian's and the RPM packages keep the script itself. What they put on PATH is a wrapper
#: that changes to the user `rabbitmq` and to the machine-wide directories.
PACKAGED_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
WRAPPER_DIRS = (Path("/usr/sbin"), Path("/usr/bin"), Path("/sbin"), Path("/bin"))

#: Homebrew's place for it, which is not on PATH by default.
HOMEBREW_SERVERS = (
    Path("/opt/homebrew/sbin/rabbitmq-server"),
    Path("/usr/local/sbin/rabbitmq-server"),
)

#: A package of some 20 MB with Erlang's 30 MB; slow mirrors take minutes.
INSTALL_TIMEOUT_S = 900.0

#: The last lines of a package manager's output that are shown when it fails.
SHOWN_LINES = 8

#: Installs without starting the machine-wide broker: invoke-rc.d and deb-systemd-invoke ask
#: policy-rc.d first (101: forbidden). One that is there already is left alone.
APT_SCRIPT = """
set -e
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 130' HUP INT TERM
    printf '#!/bin/sh\\nexit 101\\n' >"$policy"
    chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends rabbitmq-server
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installer:
    """One way to install RabbitMQ. `typed`: what a person would type; `argv`: what we run."""

    typed: str
    argv: tuple[str, ...]
    as_root: bool


#: By the program that does it; the first one on PATH is taken.
INSTALLERS: Mapping[str, Installer] = {
    "apt-get": Installer(
        typed="apt-get install --no-install-recommends rabbitmq-server",
        argv=("sh", "-c", APT_SCRIPT),
        as_root=True,
    ),
    "dnf": Installer(
        typed="dnf install rabbitmq-server",
        argv=("dnf", "install", "-y", "rabbitmq-server"),
        as_root=True,
    ),
    "brew": Installer(
        typed="brew install rabbitmq", argv=("brew", "install", "rabbitmq"), as_root=False
    ),
}


def find_rabbitmq() -> Path | None:
    """The `rabbitmq-server` script to run: the one on PATH, else the system package's."""
    found = shutil.which("rabbitmq-server")
    on_path = Path(found) if found is not None else None
    if on_path is not None and on_path.parent not in WRAPPER_DIRS:
        return on_path
    for server in (PACKAGED_SERVER, on_path, *HOMEBREW_SERVERS):
        if server is not None and os.access(server, os.X_OK):
            return server
    return None


def installer() -> Installer | None:
    """How this system installs RabbitMQ; None where we do not know."""
    for program, way in INSTALLERS.items():
        if shutil.which(program) is not None:
            return way
    return None


def install_command() -> str | None:
    """What a person would type here to install RabbitMQ; None where we do not know."""
    way = installer()
    if way is None:
        return None
    return f"sudo {way.typed}" if way.as_root and os.geteuid() != 0 else way.typed


async def ensure_rabbitmq(
    assume_yes: bool,
    ask: Callable[[str], bool] | None = None,
    *,
    report: Callable[[str], None] | None = None,
) -> Path:
    """The `rabbitmq-server` script, installed first where it is absent and that is agreed to.

    `ask` is put one plain question, and only where a person is at the terminal. Raises
    ConfigurationError that says what to type, when it is declined, impossible or fails.
    """
    found = find_rabbitmq()
    if found is not None:
        return found
    way, typed = installer(), install_command()
    if way is None or typed is None:
        raise ConfigurationError(
            "RabbitMQ is not installed: install it (version 3.10 or newer) so that "
            "`rabbitmq-server` is on PATH, and try again."
        )
    sentence = f"RabbitMQ is not installed: type `{typed}`, or try again with --yes."
    if not assume_yes:
        if ask is None or not sys.stdin.isatty():
            raise ConfigurationError(sentence)
        with interruptible():
            agreed = ask(f"RabbitMQ is not installed. Install it now with `{typed}`?")
        if not agreed:
            raise ConfigurationError(sentence)
    if report is not None:
        report(f"Installing RabbitMQ: {typed}")
    await _install(way, typed)
    found = find_rabbitmq()
    if found is None:
        raise ConfigurationError(
            f"`{typed}` succeeded, but there is no rabbitmq-server on PATH: "
            "put its directory on PATH and try again."
        )
    return found


async def _install(way: Installer, typed: str) -> None:
    argv = way.argv
    if way.as_root and os.geteuid() != 0:
        if shutil.which("sudo") is None:
            raise ConfigurationError(
                f"RabbitMQ is not installed, and installing it takes root: type `{way.typed}` "
                "as root and try again."
            )
        # Without a terminal sudo could ask nobody for a password.
        argv = ("sudo", *(() if sys.stdin.isatty() else ("-n",)), *argv)
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=None if sys.stdin.isatty() else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(INSTALL_TIMEOUT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        raise ConfigurationError(
            f"`{typed}` did not finish within {INSTALL_TIMEOUT_S:.0f} s: "
            "run it yourself and try again."
        ) from None
    finally:
        if process.returncode is None:
            # SIGTERM, which a package manager heeds between two packages.
            process.terminate()
            await process.wait()
    if process.returncode != 0:
        shown = "\n".join(f"  {line}" for line in output.decode().splitlines()[-SHOWN_LINES:])
        raise ConfigurationError(
            f"`{typed}` failed with exit code {process.returncode}: run it yourself and try "
            f"again. It ended with:\n{shown}"
        )
