"""Errors of PostgreSQL: which of them may pass, and what is told of them."""

from __future__ import annotations

import asyncpg
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tickmind.errors import TransientError

__all__ = [
    "DRIVER_ERRORS",
    "DatabaseUnavailable",
    "brief",
    "is_of_the_drivers_state",
    "is_transient",
    "sqlstate",
]

#: What the driver raises by itself where SQLAlchemy does not stand between. The last is of its own
#: state: a server's farewell has come, say, and the end of the connection not yet.
DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


class DatabaseUnavailable(TransientError):
    """PostgreSQL cannot be reached, or is not able to serve this now."""

    reason = "database"


# SQLSTATE classes and codes that another try may cure (PostgreSQL documentation, appendix A):
# 08 connection, 28 and 3D a user or database that an operator is about to make (or a password
# about to follow its rotation), 40 rollback and deadlock, 53 out of resources, 57P0x shutting
# down, 55P03 lock not available, 25006 a node that became read-only, 25P03 idle for too long, 57014
# cancelled.
_TRANSIENT_CLASSES = ("08", "28", "3D", "40", "53", "57P0")
_TRANSIENT_CODES = frozenset({"25006", "25P03", "55P03", "57014"})


def sqlstate(exc: BaseException) -> str | None:
    """SQLSTATE of a driver's error, where it has one."""
    orig = getattr(exc, "orig", exc)
    code = getattr(orig, "sqlstate", None)
    return code if isinstance(code, str) else None


def is_transient(exc: BaseException) -> bool:
    """Whether the same statement may succeed later."""
    if isinstance(exc, PoolTimeout | OSError | TimeoutError | DatabaseUnavailable):
        return True
    code = sqlstate(exc)
    if code is not None:
        return code.startswith(_TRANSIENT_CLASSES) or code in _TRANSIENT_CODES
    if isinstance(exc, asyncpg.InterfaceError):
        return not isinstance(exc, asyncpg.DataError)
    if is_of_the_drivers_state(exc):
        return True
    if not isinstance(exc, DBAPIError):
        return False
    if isinstance(exc.orig.__cause__ if exc.orig else None, asyncpg.DataError):
        return False  # a parameter that does not fit its type
    return exc.connection_invalidated or isinstance(exc, InterfaceError | OperationalError)


def is_of_the_drivers_state(exc: BaseException) -> bool:
    """Whether the driver was in no state to send anything: the server's farewell has come, and the
    end of the connection not yet."""
    orig = getattr(exc, "orig", exc)
    kinds = type(orig), type(getattr(orig, "__cause__", None))
    return asyncpg.InternalClientError in kinds  # its subclasses are about other things


def brief(exc: BaseException) -> str:
    """The cause in a line, without the statement and its parameters (texts are private)."""
    orig = getattr(exc, "orig", None) or exc
    return f"{type(orig).__name__}: {str(orig).splitlines()[0] if str(orig) else 'no details'}"
