"""Where the local stack keeps its data, and how it is emptied."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from tickmind.errors import ConfigurationError
from tickmind.local.system_user import database_user, reaches

__all__ = ["PARTS", "default_state_dir", "prepare", "wipe"]

#: In the directory one works in, like other tools' state; ignored by git.
NAME = ".tickmind"

#: For root only, where PostgreSQL's user cannot enter the working directory (often /root): the
#: place of the Filesystem Hierarchy Standard for a program's lasting state.
ROOT_STATE = Path("/var/lib/tickmind")

#: All the stack ever writes below its directory; nothing else there is touched.
PARTS = ("postgres", "rabbitmq", "run", "logs")


def default_state_dir(working_dir: Path | None = None) -> Path:
    """`.tickmind/` in the working directory; as root, where PostgreSQL's user cannot enter that,
    a directory of its own for each working directory under /var/lib/tickmind."""
    working_dir = (working_dir or Path.cwd()).absolute()
    state_dir = working_dir / NAME
    if reaches(database_user(state_dir / "postgres" / "cluster"), state_dir):
        return state_dir
    digest = hashlib.sha256(os.fsencode(working_dir)).hexdigest()[:8]
    return ROOT_STATE / f"{working_dir.name or 'root'}-{digest}"


def prepare(state_dir: Path) -> None:
    """Make the directory and its parts; raises ConfigurationError where that is not allowed."""
    try:
        for part in PARTS:
            (state_dir / part).mkdir(parents=True, exist_ok=True)
        # Written to, not only made: it may be there and another user's.
        (state_dir / "lock").open("a").close()
    except OSError as error:
        raise ConfigurationError(
            f"The state directory {state_dir} cannot be written ({error.strerror}): choose "
            "another one, or remove it if another user of this machine made it."
        ) from error


def wipe(state_dir: Path) -> None:
    """Remove all data and logs of the stack; to be called by the holder of its lock."""
    for part in PARTS:
        shutil.rmtree(state_dir / part)
        (state_dir / part).mkdir()
