"""`python -m tickmind_recorder`: the recorder as a process."""

from __future__ import annotations

import sys

from tickmind.service import main as serve
from tickmind_recorder.app import create_app
from tickmind_recorder.settings import RecorderSettings

__all__ = ["SETTINGS", "main"]

#: What `tickmind recorder --help` lists.
SETTINGS = RecorderSettings


def main() -> int:
    return serve("recorder", RecorderSettings, create_app)


if __name__ == "__main__":
    sys.exit(main())
