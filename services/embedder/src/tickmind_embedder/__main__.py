"""`python -m tickmind_embedder`: the embedder as a process."""

from __future__ import annotations

import sys

from tickmind.service import main as serve
from tickmind_embedder.app import create_app
from tickmind_embedder.settings import EmbedderSettings

__all__ = ["SETTINGS", "main"]

#: What `tickmind embedder --help` lists.
SETTINGS = EmbedderSettings


def main() -> int:
    return serve("embedder", EmbedderSettings, create_app)


if __name__ == "__main__":
    sys.exit(main())
