"""How many rows PostgreSQL touches for each statement, whatever it takes them for."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

__all__ = ["Explained", "explaining"]

# PostgreSQL tells the plan of each statement as it was run, generic or not, as a message.
_ON = """
    LOAD 'auto_explain';
    SET auto_explain.log_min_duration = 0;
    SET auto_explain.log_analyze = on;
    SET auto_explain.log_timing = off;
    SET auto_explain.log_format = json;
    SET client_min_messages = log;
"""
_OFF = """
    SET auto_explain.log_min_duration = -1;
    SET client_min_messages = notice;
"""
_PASSED_BY = ("Rows Removed by Filter", "Rows Removed by Join Filter")


class Explained:
    """One statement, as it was run. `rows`: those that each step of its plan gave or passed by,
    all steps together."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.statement: str = told["Query Text"]
        self.plan: dict[str, Any] = told["Plan"]
        self.rows = _touched(self.plan)

    def __repr__(self) -> str:
        return "\n".join([self.statement, f"touches {self.rows:.0f} rows:", *_lines(self.plan)])


@asynccontextmanager
async def explaining(session: AsyncSession) -> AsyncIterator[list[Explained]]:
    """What the session runs meanwhile: complete at the end."""
    found: list[Explained] = []

    def told(_: object, message: Any) -> None:
        _, plan, told = message.message.partition("plan:\n")
        if plan:
            found.append(Explained(json.loads(told)))

    raw: Any = (await (await session.connection()).get_raw_connection()).driver_connection
    await raw.execute(_ON)
    raw.add_log_listener(told)
    try:
        yield found
        await raw.execute(_OFF)
    finally:
        raw.remove_log_listener(told)


def _touched(node: dict[str, Any]) -> float:
    own = node["Actual Rows"] + sum(node.get(name, 0) for name in _PASSED_BY)
    return float(own * node["Actual Loops"]) + sum(_touched(one) for one in node.get("Plans", ()))


def _lines(node: dict[str, Any], indent: int = 0) -> list[str]:
    named = ("Subplan Name", "Node Type", "Index Name", "Relation Name", "CTE Name")
    about = " ".join(str(node[name]) for name in named if name in node)
    told = f"{'  ' * indent}{about} rows={node['Actual Rows']} loops={node['Actual Loops']}"
    told += "".join(f" {name}={node[name]}" for name in _PASSED_BY if name in node)
    return [told, *(line for one in node.get("Plans", ()) for line in _lines(one, indent + 1))]
