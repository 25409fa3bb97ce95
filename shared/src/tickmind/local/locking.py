"""One holder a directory, until its process ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from tickmind.errors import ConfigurationError

__all__ = ["exclusive"]


@contextlib.contextmanager
def exclusive(lock_path: Path, sentence: str) -> Iterator[None]:
    """Hold a lock that ends with this process; raises ConfigurationError(sentence) if it is held.

    `{pid}` in the sentence becomes the process id of the holder.
    """
    with lock_path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise ConfigurationError(sentence.format(pid=lock.read().strip() or "?")) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield
