"""`python -m tickmind.cli`: the same as `tickmind`."""

from __future__ import annotations

import sys

from tickmind.cli import main

if __name__ == "__main__":
    sys.exit(main())
