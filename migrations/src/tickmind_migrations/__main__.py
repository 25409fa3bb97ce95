"""`python -m tickmind_migrations`: migrate the database that the environment names."""

from __future__ import annotations

import asyncio
import sys

from sqlalchemy.exc import SQLAlchemyError

from tickmind.database_errors import DRIVER_ERRORS
from tickmind.errors import TickmindError
from tickmind.settings import DatabaseSettings, load
from tickmind_migrations import upgrade


def main() -> int:
    try:
        asyncio.run(upgrade(load(DatabaseSettings), print))
    except (TickmindError, SQLAlchemyError, *DRIVER_ERRORS, OSError) as exc:
        print(f"tickmind migrate: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
