"""One budget per provider for the whole fleet: reservations, a line to wait in, and what was used.

Revision ID: 0002
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_STATEMENTS = (
    """
    CREATE TABLE provider_budget (
        provider text COLLATE "C" NOT NULL CONSTRAINT pk_provider_budget PRIMARY KEY,
        -- Nobody calls before this: a 429, a spent quota or a refused key said so.
        blocked_until timestamptz,
        blocked_reason text,
        -- The line of those who wait, first come first served.
        next_ticket bigint NOT NULL DEFAULT 1,
        -- A retriever said lately that it wants its share kept.
        recall_until timestamptz
    )
    """,
    # One row a call, kept while a window may still count it.
    """
    CREATE TABLE provider_reservation (
        provider text COLLATE "C" NOT NULL
            CONSTRAINT fk_provider_reservation_provider_provider_budget
            REFERENCES provider_budget ON DELETE CASCADE,
        id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_provider_reservation PRIMARY KEY,
        -- When the provider has counted it at the latest: grant and guard at first, then the
        -- moment of the answer, which came after.
        counted_at timestamptz NOT NULL,
        purpose text NOT NULL,
        slot bigint NOT NULL,
        calls integer NOT NULL,
        texts integer NOT NULL,
        tokens bigint NOT NULL
    )
    """,
    """
    CREATE INDEX ix_provider_reservation_provider_counted_at
        ON provider_reservation (provider, counted_at) INCLUDE (calls, texts, tokens)
    """,
    """
    CREATE TABLE provider_ticket (
        provider text COLLATE "C" NOT NULL
            CONSTRAINT fk_provider_ticket_provider_provider_budget
            REFERENCES provider_budget ON DELETE CASCADE,
        ticket bigint NOT NULL,
        alive_until timestamptz NOT NULL,
        -- What is waited for, in full.
        calls integer NOT NULL,
        texts integer NOT NULL,
        tokens bigint NOT NULL,
        CONSTRAINT pk_provider_ticket PRIMARY KEY (provider, ticket)
    )
    """,
    # Ten minutes a row: what daily windows are summed from, and what `tickmind status` shows.
    """
    CREATE TABLE provider_usage (
        provider text COLLATE "C" NOT NULL
            CONSTRAINT fk_provider_usage_provider_provider_budget
            REFERENCES provider_budget ON DELETE CASCADE,
        slot bigint NOT NULL,
        purpose text NOT NULL,
        calls bigint NOT NULL,
        texts bigint NOT NULL,
        tokens bigint NOT NULL,
        CONSTRAINT pk_provider_usage PRIMARY KEY (provider, slot, purpose)
    )
    """,
    # Units that a window of so many seconds counts now. Windows longer than an hour are summed
    # from the slots, whole ones: never less than the truth.
    """
    CREATE FUNCTION tickmind_used(
        p_provider text, p_unit text, p_seconds float8, p_now timestamptz
    ) RETURNS float8 LANGUAGE sql STABLE AS $$
        SELECT CASE WHEN p_seconds <= 3600 THEN (
            SELECT coalesce(sum(CASE p_unit WHEN 'calls' THEN calls WHEN 'texts' THEN texts
                                            ELSE tokens END), 0)
            FROM provider_reservation
            WHERE provider = p_provider AND counted_at > p_now - make_interval(secs => p_seconds)
        ) ELSE (
            SELECT coalesce(sum(CASE p_unit WHEN 'calls' THEN calls WHEN 'texts' THEN texts
                                            ELSE tokens END), 0)
            FROM provider_usage
            WHERE provider = p_provider
              AND (slot + 1) * 600 > extract(epoch FROM p_now) - p_seconds
        ) END
    $$
    """,
    # Seconds until so many units have left a window.
    """
    CREATE FUNCTION tickmind_free_in(
        p_provider text, p_unit text, p_seconds float8, p_now timestamptz, p_units float8
    ) RETURNS float8 LANGUAGE sql STABLE AS $$
        WITH counted AS (
            SELECT extract(epoch FROM counted_at) + p_seconds - extract(epoch FROM p_now)
                   AS free_in,
                   CASE p_unit WHEN 'calls' THEN calls WHEN 'texts' THEN texts
                               ELSE tokens END AS units
            FROM provider_reservation
            WHERE p_seconds <= 3600 AND provider = p_provider
              AND counted_at > p_now - make_interval(secs => p_seconds)
            UNION ALL
            SELECT (slot + 1) * 600 + p_seconds - extract(epoch FROM p_now),
                   CASE p_unit WHEN 'calls' THEN calls WHEN 'texts' THEN texts ELSE tokens END
            FROM provider_usage
            WHERE p_seconds > 3600 AND provider = p_provider
              AND (slot + 1) * 600 > extract(epoch FROM p_now) - p_seconds
        ), freed AS (
            SELECT free_in, sum(units) OVER (ORDER BY free_in ROWS UNBOUNDED PRECEDING) AS upto
            FROM counted
        )
        SELECT coalesce((SELECT min(free_in) FROM freed WHERE upto >= p_units), p_seconds)::float8
    $$
    """,
    """
    CREATE FUNCTION tickmind_keep_ticket(
        p_provider text, p_ticket bigint, p_now timestamptz, p_wait_s float8,
        p_calls integer, p_texts integer, p_tokens bigint
    ) RETURNS void LANGUAGE sql AS $$
        -- Who does not come back within half a second is taken for dead, and has its place again
        -- where it is not. Nobody sleeps longer than 6 s.
        INSERT INTO provider_ticket (provider, ticket, alive_until, calls, texts, tokens)
        VALUES (p_provider, p_ticket, p_now + make_interval(secs => least(p_wait_s, 6) + 0.5),
                p_calls, p_texts, p_tokens)
        ON CONFLICT ON CONSTRAINT pk_provider_ticket
        DO UPDATE SET alive_until = excluded.alive_until
    $$
    """,
    """
    CREATE FUNCTION tickmind_reserve(
        p_provider text,      -- whose budget
        p_purpose text,       -- documents (waits in line) or queries (does not)
        p_seconds float8[],   -- windows: length,
        p_units text[],       --   what they count: calls, texts or tokens,
        p_amounts float8[],   --   and how many
        p_calls integer,      -- calls wanted (a slice for the next seconds may hold several)
        p_tokens bigint[],    -- estimated tokens of each text wanted, in the order wanted
        p_floor integer,      -- fewest texts worth a call
        p_guard_s float8,     -- how much later than granted a call may reach the provider
        p_kept float8,        -- share that documents leave to queries while a retriever lives
        p_ticket bigint       -- our place in the line, null at first
    ) RETURNS TABLE (granted integer, wait_s float8, ticket bigint, reservation bigint, reason text)
    LANGUAGE plpgsql AS $$
    DECLARE
        v_now timestamptz;
        v_budget provider_budget;
        v_texts integer := cardinality(p_tokens);
        v_fits integer := v_texts;
        v_here integer;
        v_wait float8 := 0;
        v_this float8;
        v_limit float8;
        v_used float8;
        v_need float8;
        v_total bigint;
        v_ticket bigint := p_ticket;
        v_slot bigint;
        v_id bigint;
        v_never boolean := false;
        v_back float8;
        v_asked bigint;
        v_before bigint := 0;
        v_calls_before bigint := 0;
        v_texts_before bigint := 0;
        v_tokens_before bigint := 0;
    BEGIN
        INSERT INTO provider_budget (provider) VALUES (p_provider) ON CONFLICT DO NOTHING;
        SELECT * INTO v_budget FROM provider_budget WHERE provider = p_provider FOR UPDATE;
        -- Only now: the lock may have been waited for.
        v_now := clock_timestamp();
        SELECT coalesce(sum(t), 0) INTO v_asked FROM unnest(p_tokens) AS wanted (t);

        IF p_purpose = 'queries' THEN
            IF v_budget.recall_until IS NULL OR v_budget.recall_until < v_now + interval '30 s' THEN
                UPDATE provider_budget SET recall_until = v_now + interval '60 s'
                WHERE provider = p_provider;
            END IF;
        ELSIF v_ticket IS NULL THEN
            v_ticket := v_budget.next_ticket;
            UPDATE provider_budget SET next_ticket = v_ticket + 1 WHERE provider = p_provider;
        END IF;

        IF v_budget.blocked_until > v_now THEN
            v_wait := extract(epoch FROM v_budget.blocked_until - v_now);
            IF v_ticket IS NOT NULL THEN
                PERFORM tickmind_keep_ticket(p_provider, v_ticket, v_now, v_wait,
                                             p_calls, v_texts, v_asked);
            END IF;
            RETURN QUERY SELECT 0, v_wait, v_ticket, NULL::bigint, v_budget.blocked_reason;
            RETURN;
        END IF;

        -- The dead leave the line. Who still stands before us goes first: what they wait for is
        -- theirs, and only what is left beside it may be ours already.
        IF v_ticket IS NOT NULL THEN
            DELETE FROM provider_ticket t WHERE t.provider = p_provider AND t.alive_until < v_now;
            SELECT count(*), coalesce(sum(t.calls), 0), coalesce(sum(t.texts), 0),
                   coalesce(sum(t.tokens), 0)
            INTO v_before, v_calls_before, v_texts_before, v_tokens_before
            FROM provider_ticket t WHERE t.provider = p_provider AND t.ticket < v_ticket;
        END IF;

        FOR i IN 1 .. cardinality(p_seconds) LOOP
            v_limit := p_amounts[i];
            IF p_purpose <> 'queries' AND v_budget.recall_until > v_now THEN
                v_limit := v_limit * (1 - p_kept);
            END IF;
            v_used := tickmind_used(p_provider, p_units[i], p_seconds[i], v_now)
                + CASE p_units[i] WHEN 'calls' THEN v_calls_before WHEN 'texts' THEN v_texts_before
                                  ELSE v_tokens_before END;
            -- How many of the texts wanted fit in here.
            IF p_units[i] = 'calls' THEN
                v_here := CASE WHEN v_used + p_calls <= v_limit THEN v_texts ELSE 0 END;
                v_need := p_calls;
            ELSIF p_units[i] = 'texts' THEN
                v_here := greatest(0, least(v_texts, floor(v_limit - v_used)::integer));
                v_need := p_floor;
            ELSE
                SELECT count(*) INTO v_here FROM (
                    SELECT sum(t) OVER (ORDER BY n) AS upto
                    FROM unnest(p_tokens) WITH ORDINALITY AS wanted (t, n)
                ) AS sums WHERE upto <= v_limit - v_used;
                SELECT sum(t) INTO v_need
                FROM unnest(p_tokens[1:p_floor]) AS wanted (t);
            END IF;
            IF v_here < p_floor THEN
                -- More than the window holds even when it is empty.
                v_never := v_never OR v_need > v_limit;
                v_this := tickmind_free_in(p_provider, p_units[i], p_seconds[i],
                                           v_now, v_used - (v_limit - v_need));
                -- Estimates are high: calls under way may leave room as soon as they are answered.
                IF p_units[i] = 'tokens' THEN v_this := least(v_this, 0.25); END IF;
                IF v_this > v_wait THEN v_wait := v_this; END IF;
            END IF;
            v_fits := least(v_fits, v_here);
        END LOOP;

        IF v_fits < p_floor AND v_before > 0 AND NOT v_never THEN
            -- We come back just after the one before us, who may be late; the longer, the less
            -- often we look.
            SELECT extract(epoch FROM t.alive_until - v_now)::float8 - 0.5 INTO v_back
            FROM provider_ticket t WHERE t.provider = p_provider AND t.ticket < v_ticket
            ORDER BY t.ticket DESC LIMIT 1;
            v_wait := greatest(v_back + 0.005, least(-v_back, 0.25), 0.01);
            PERFORM tickmind_keep_ticket(p_provider, v_ticket, v_now, v_wait,
                                         p_calls, v_texts, v_asked);
            RETURN QUERY SELECT 0, v_wait, v_ticket, NULL::bigint, 'line'::text;
            RETURN;
        END IF;
        IF v_fits < p_floor THEN
            IF v_never THEN  -- who can never be served holds nobody up
                DELETE FROM provider_ticket t WHERE t.provider = p_provider AND t.ticket = v_ticket;
            ELSIF v_ticket IS NOT NULL THEN
                PERFORM tickmind_keep_ticket(p_provider, v_ticket, v_now, v_wait,
                                             p_calls, v_texts, v_asked);
            END IF;
            RETURN QUERY SELECT 0, greatest(v_wait, 0.005), v_ticket, NULL::bigint,
                CASE WHEN v_never THEN 'never' ELSE 'budget' END;
            RETURN;
        END IF;

        SELECT coalesce(sum(t), 0) INTO v_total FROM unnest(p_tokens[1:v_fits]) AS taken (t);
        v_slot := floor(extract(epoch FROM v_now) / 600);
        INSERT INTO provider_reservation (provider, counted_at, purpose, slot, calls, texts, tokens)
        VALUES (p_provider, v_now + make_interval(secs => p_guard_s), p_purpose, v_slot,
                p_calls, v_fits, v_total)
        RETURNING id INTO v_id;
        INSERT INTO provider_usage AS u (provider, slot, purpose, calls, texts, tokens)
        VALUES (p_provider, v_slot, p_purpose, p_calls, v_fits, v_total)
        ON CONFLICT ON CONSTRAINT pk_provider_usage DO UPDATE
        SET calls = u.calls + excluded.calls, texts = u.texts + excluded.texts,
            tokens = u.tokens + excluded.tokens;
        IF v_ticket IS NOT NULL THEN
            DELETE FROM provider_ticket t WHERE t.provider = p_provider AND t.ticket = v_ticket;
        END IF;
        -- What no window of an hour or less can count any more.
        DELETE FROM provider_reservation r
        WHERE r.provider = p_provider AND r.counted_at < v_now - interval '2 hours';
        RETURN QUERY SELECT v_fits, 0::float8, v_ticket, v_id, NULL::text;
    END $$
    """,
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    for function in ("reserve", "keep_ticket", "free_in", "used"):
        op.execute(f"DROP FUNCTION tickmind_{function}")
    for table in ("usage", "ticket", "reservation", "budget"):
        op.execute(f"DROP TABLE provider_{table}")
