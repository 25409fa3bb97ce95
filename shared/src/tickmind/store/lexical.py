"""Memories found by their words: an inverted index in PostgreSQL, of terms that hold the agent.

`scoring.by_words` is the definition. What a question costs is bounded: so many terms, and of each
term so many memories; a term that more of them have is let go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind import scoring
from tickmind.driver import fetch, numbered
from tickmind.store.locking import share_links
from tickmind.store.recall import Filters
from tickmind.words import array, digests, keys, query_digests

__all__ = ["MOST_FOUND", "Asked", "Filled", "agent_sizes", "backfill", "find"]

#: Memories found for each question. Vectors find the rest: words that match worse than the
#: hundredth best add less than what parts the best five.
MOST_FOUND = 100
#: An agent's memories are counted up to here: 20 ms once in a while. A size enters as a logarithm.
_LARGEST_SIZE = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One agent, what it sees, and how many memories it has, more or less."""

    agent_id: int
    observation: str
    size: int


_SIZES = text("""
    SELECT wanted.id, (SELECT count(*) FROM (SELECT FROM memory m WHERE m.agent_id = wanted.id
                                             LIMIT :most) AS own) AS size
    FROM unnest(CAST(:agent_ids AS bigint[])) AS wanted (id)
""")


async def agent_sizes(session: AsyncSession, agent_ids: Sequence[int]) -> dict[int, int]:
    """How many memories these agents have, counted up to 100,000."""
    rows = await session.execute(
        _SIZES, {"agent_ids": sorted(set(agent_ids)), "most": _LARGEST_SIZE}
    )
    return {row.id: row.size for row in rows}


# Only the term is asked of the index: with the agent beside it in the same scan, the planner would
# intersect it with an index of all the agent's memories. The numbers are those of `scoring`.
# Rounded at the end: the order in which a sum is made up must not part equals.
# Windows instead of joins: the planner takes each list of memories for one row, and would join
# them by comparing all with all.
_FIND_SQL = """
    WITH posted AS (
        SELECT k.asked, k.key, k.size, p.*
        FROM unnest(CAST(:asked AS integer[]), CAST(:agent_ids AS bigint[]),
                    CAST(:sizes AS float8[]), CAST(:keys AS bigint[]))
            AS k (asked, agent_id, size, key)
        LEFT JOIN LATERAL (
            SELECT * FROM (
                SELECT m.id, cardinality(m.terms) AS length, m.agent_id, m.tick, m.kind,
                       m.importance, m.is_core
                FROM memory m WHERE m.terms @> ARRAY[k.key] LIMIT {documents} + 1
            ) AS holding
            WHERE holding.agent_id = k.agent_id
        ) AS p ON true
    ), counted AS (
        SELECT *, count(id) OVER term AS documents, row_number() OVER term AS nth
        FROM posted WINDOW term AS (PARTITION BY asked, key)
    ), weighed AS (
        SELECT *, ln(1 + (greatest(size, documents) - documents + 0.5) / (documents + 0.5)) AS idf
        FROM counted
        WHERE documents <= {documents}
          AND (greatest(size, documents) < {small} OR documents <= {share} * size)
    ), massed AS (
        SELECT *, least({full} * sum(idf) FILTER (WHERE nth = 1) OVER (PARTITION BY asked),
                        {terms} * ln(1 + (greatest(size, 1) - 0.5) / 1.5)) AS least
        FROM weighed
    ), scored AS (
        SELECT r.asked, r.id, max(r.least) AS least,
               sum(r.idf * {gain}::float8 / ({fixed}::float8 + {each}::float8 * r.length)) AS score
        FROM massed r
        WHERE r.id IS NOT NULL
          AND (CAST(:as_of_tick AS bigint) IS NULL OR r.tick <= :as_of_tick)
          AND (CAST(:from_tick AS bigint) IS NULL OR r.tick >= :from_tick)
          AND (NOT CAST(:core_only AS boolean) OR r.is_core)
          AND (CAST(:kinds AS text[]) IS NULL OR r.kind = ANY(CAST(:kinds AS text[])))
          AND (CAST(:min_importance AS smallint) IS NULL OR r.importance >= :min_importance)
        GROUP BY r.asked, r.id
    ), placed AS (
        SELECT asked, id,
               round(1048576 * power(score / greatest(max(score) OVER (PARTITION BY asked), least),
                                     {power}::float8)) / 1048576 AS words,
               row_number() OVER (PARTITION BY asked ORDER BY score DESC, id DESC) AS place
        FROM scored
    )
    SELECT asked, id, words FROM placed WHERE place <= {found} AND words > 0
    ORDER BY asked, place
"""
_FIND = numbered(
    _FIND_SQL.format(
        documents=scoring.MAX_DOCUMENTS,
        small=scoring.SMALL_AGENT,
        share=scoring.MAX_SHARE,
        full=scoring.FULL_SHARE,
        terms=scoring.FULL_TERMS,
        power=scoring.WORDS_POWER,
        gain=scoring.K1 + 1,
        fixed=1 + scoring.K1 * (1 - scoring.B),
        each=scoring.K1 * scoring.B / scoring.TYPICAL_TERMS,
        found=MOST_FOUND,
    )
)


async def find(
    session: AsyncSession, questions: Sequence[Asked], *, filters: Filters
) -> list[dict[int, float]]:
    """For each question the memories whose words match, best first: id and score in (0, 1]."""
    found: list[dict[int, float]] = [{} for _ in questions]
    rows = [
        (number, question.agent_id, float(question.size), key)
        for number, question in enumerate(questions)
        for key in keys(question.agent_id, query_digests(question.observation))
    ]
    if not rows:
        return found
    asked, agent_ids, sizes, wanted = map(list, zip(*rows, strict=True))
    parameters = {
        "asked": asked,
        "agent_ids": agent_ids,
        "sizes": sizes,
        "keys": wanted,
        "as_of_tick": filters.as_of_tick,
        "from_tick": filters.from_tick,
        "core_only": filters.core_only,
        "kinds": list(filters.kinds) if filters.kinds is not None else None,
        "min_importance": filters.min_importance,
    }
    for place, id_, words in await fetch(session, _FIND, parameters):
        found[place][id_] = words
    return found


_WITHOUT_TERMS = text("""
    SELECT id, agent_id, content, context FROM memory
    WHERE terms IS NULL AND id > :after ORDER BY id LIMIT :most
""")
_SET_TERMS = text("""
    UPDATE memory m SET terms = CAST(r.terms AS bigint[])
    FROM unnest(CAST(:ids AS bigint[]), CAST(:terms AS text[])) AS r (id, terms)
    WHERE m.id = r.id AND m.terms IS NULL
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """One chunk of older memories: how many got their words, and the last id, to go on from."""

    filled: int
    last: int


async def backfill(session: AsyncSession, *, after: int, most: int) -> Filled | None:
    """Give at most `most` memories recorded before there were words their terms, by id.

    None: there are no more. May run twice, and while others record; nobody deletes meanwhile.
    """
    await share_links(session)
    rows = (await session.execute(_WITHOUT_TERMS, {"after": after, "most": most})).all()
    if not rows:
        return None
    terms = [array(keys(row.agent_id, digests(row.content, row.context))) for row in rows]
    await session.execute(_SET_TERMS, {"ids": [row.id for row in rows], "terms": terms})
    return Filled(filled=len(rows), last=rows[-1].id)
