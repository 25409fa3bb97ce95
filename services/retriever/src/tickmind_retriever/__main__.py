"""`python -m tickmind_retriever`: the retriever as a process."""

from __future__ import annotations

import sys

from tickmind.service import main as serve
from tickmind_retriever.app import create_app
from tickmind_retriever.settings import RetrieverSettings

__all__ = ["SETTINGS", "main"]

#: What `tickmind retriever --help` lists.
SETTINGS = RetrieverSettings


def main() -> int:
    return serve("retriever", RetrieverSettings, create_app)


if __name__ == "__main__":
    sys.exit(main())
