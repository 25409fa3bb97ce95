"""Prepare the bundled PostgreSQL: roles, their passwords, pgvector. Safe to run again.

Runs before `tickmind migrate`, as the superuser, and waits for the server. Reads from the
environment: PGHOST, PGPORT, PGUSER, PGPASSWORD (of the superuser), DATABASE, and for the owner
and each service ROLE_<NAME> and PASSWORD_<NAME>; NAME is OWNER, RECORDER, EMBEDDER, RETRIEVER.
What each service's role may do is granted by the migration.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping

import asyncpg

#: A new volume takes PostgreSQL some 10 s; a node that pulls its image first, minutes.
WAIT_S = 300.0
LOOK_AGAIN_S = 2.0

#: Where pgvector lives: a schema of its own, which services may use and not write to.
EXTENSIONS = "extensions"
ROLES = ("OWNER", "RECORDER", "EMBEDDER", "RETRIEVER")


async def _connect(environment: Mapping[str, str], database: str) -> asyncpg.Connection:
    until = time.monotonic() + WAIT_S
    while True:
        try:
            return await asyncpg.connect(
                host=environment["PGHOST"],
                port=int(environment["PGPORT"]),
                user=environment["PGUSER"],
                password=environment["PGPASSWORD"],
                database=database,
                timeout=5,
            )
        except (OSError, TimeoutError, asyncpg.CannotConnectNowError) as exc:
            if time.monotonic() > until:
                sys.exit(f"PostgreSQL did not answer within {WAIT_S:g} s: {exc}")
        await asyncio.sleep(LOOK_AGAIN_S)


async def _run(connection: asyncpg.Connection, template: str, *values: str) -> None:
    """Run a statement that takes no parameters, its gaps quoted by the server itself (format)."""
    numbers = ", ".join(f"${number}::text" for number in range(2, len(values) + 2))
    statement = await connection.fetchval(f"SELECT format($1::text, {numbers})", template, *values)
    await connection.execute(statement)


async def prepare(environment: Mapping[str, str]) -> None:
    """Roles with the passwords of now, the database theirs to connect to, pgvector in it."""
    database = environment["DATABASE"]
    roles = {name: environment[f"ROLE_{name}"] for name in ROLES}
    connection = await _connect(environment, database)
    try:
        # Two of these at once, of two revisions, would meet in the catalogues.
        await connection.execute("SELECT pg_advisory_lock(hashtext('tickmind roles'))")
        for name, role in roles.items():
            known = await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", role)
            verb = "ALTER" if known else "CREATE"
            password = environment[f"PASSWORD_{name}"]
            await _run(connection, f"{verb} ROLE %I LOGIN PASSWORD %L", role, password)
        await _run(connection, "ALTER DATABASE %I OWNER TO %I", database, roles["OWNER"])
        await _run(connection, "REVOKE ALL ON DATABASE %I FROM PUBLIC", database)
        for role in roles.values():
            await _run(connection, "GRANT CONNECT ON DATABASE %I TO %I", database, role)
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {EXTENSIONS}")
        await connection.execute(f"CREATE EXTENSION IF NOT EXISTS vector SCHEMA {EXTENSIONS}")
        await connection.execute(f"GRANT USAGE ON SCHEMA {EXTENSIONS} TO PUBLIC")
        path = f"ALTER DATABASE %I SET search_path = public, {EXTENSIONS}"
        await _run(connection, path, database)
    finally:
        await connection.close()


if __name__ == "__main__":
    asyncio.run(prepare(os.environ))
    print("roles and pgvector are in place")
