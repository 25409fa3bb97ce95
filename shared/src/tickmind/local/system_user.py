"""Whom to run PostgreSQL as, which refuses to run as root, and what that user can reach."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

from tickmind.errors import ConfigurationError
from tickmind.local.processes import SystemUser

__all__ = ["database_user", "reaches"]

#: The system user made for the purpose where we are root. It owns nothing but the database.
USER_NAME = "tickmind"

#: Used where no user can be added: the first of these that exists.
EXISTING_USERS = ("postgres", "nobody")


def database_user(cluster: Path) -> SystemUser | None:
    """The user to run PostgreSQL as on `cluster`; None: the one we are.

    As root: whoever owns the files already there, else the system user `tickmind`, which is
    created. Raises ConfigurationError where there is no such user to be had.
    """
    if os.geteuid() != 0:
        return None
    if cluster.exists() and (owner := cluster.stat()).st_uid != 0:
        return SystemUser(name=str(owner.st_uid), uid=owner.st_uid, gid=owner.st_gid)
    for name in (USER_NAME, *EXISTING_USERS):
        if name == USER_NAME:
            _add_user()
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return SystemUser(name=name, uid=entry.pw_uid, gid=entry.pw_gid)
    raise ConfigurationError(
        "PostgreSQL does not run as root and this system has no other user for it: "
        f"create one with `useradd --system {USER_NAME}`, or run tickmind as an ordinary user."
    )


def _add_user() -> None:
    """Create the system user, where it is missing and this system can."""
    useradd = shutil.which("useradd")
    try:
        pwd.getpwnam(USER_NAME)
    except KeyError:
        if useradd is not None:
            subprocess.run(
                [useradd, "--system", "--no-create-home", "--shell", "/bin/false", USER_NAME],
                check=False,
                capture_output=True,
            )


def reaches(user: SystemUser | None, path: Path) -> bool:
    """Whether `user` can open `path`, or the nearest parent of it that exists.

    Asked of the system as that user, since mount options and access lists count too.
    """
    while not path.exists():
        path = path.parent
    if user is None:
        return os.access(path, os.R_OK | os.X_OK)
    asked = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _ACCESS, str(user.uid), str(user.gid), str(path)],
        check=False,
        capture_output=True,
    )
    return asked.returncode == 0


_ACCESS = """
import os, sys
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[1]))
sys.exit(not os.access(sys.argv[3], os.X_OK))
"""
