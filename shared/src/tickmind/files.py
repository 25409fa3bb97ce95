"""Files that settings name: read whole, but no further than such a file may reach."""

from __future__ import annotations

from pathlib import Path

__all__ = ["MAX_FILE_BYTES", "read_text"]

#: Largest file, in bytes (1 MiB): the policy that ships has 2 kB, and a device has no end.
MAX_FILE_BYTES = 1024 * 1024


def read_text(path: Path) -> str:
    """The text of a file, in UTF-8. Raises OSError, ValueError."""
    with path.open("rb") as file:
        body = file.read(MAX_FILE_BYTES + 1)
    if len(body) > MAX_FILE_BYTES:
        msg = f"it has more than {MAX_FILE_BYTES} bytes"
        raise ValueError(msg)
    return body.decode()
