"""Names of worlds and agents that are easily taken for each other, or for something else."""

from __future__ import annotations

import unicodedata

from hypothesis import strategies as st

from tickmind.messages import MAX_NAME_CHARS

__all__ = ["NAMES", "other_names", "same_name"]

_BASE = "Zoë"

#: Each is somebody else.
NAMES: tuple[str | int, ...] = (
    *("alice", "Alice", "ALICE", "alice ", " alice", "alice\t", "alice\n", "ali ce"),
    "'alice'",
    # What SQL, LIKE and format strings make of a name
    *("%", "_", "a%", "a_", "al_ce", "al%", "a\\", "\\%", "o'x", "o''x", '"', '""', "`", "$1"),
    *("' OR 1=1 --", "'; DROP TABLE memory; --", "alice' UNION SELECT * FROM memory --"),
    *(":world", ":agent_ids", "%(world)s", "{}", "{0}", "{world}", "NULL", "null", "{NULL}"),
    *("john_doe", "john-doe", "john.doe", "john doe", "{alice,bob}", "a,b", "a;b"),
    # Numbers: 17 is "17" and nothing else
    *(17, 170, "017", "17.0", "+17", "-17", "1e1", "１７", "٣", 2**53, 2**53 + 1, 10**19, -17_000),
    # One glyph, several spellings; look-alikes
    *(unicodedata.normalize(form, _BASE) for form in ("NFC", "NFD")),
    *("Zoe", "ΖΟΕ", "аlice", "aIice", "ａｌｉｃｅ", "alıce", "ALİCE"),
    *("ﬁsh", "fish", "ſtraße", "strasse"),
    *("Å", "\u212b", "A\u030a", "李", "李\ufe00", "\uf9e1"),
    # Unseen
    *("ali\u200bce", "alice\u202e", "\u200dalice", "alice\ufeff", "\xa0", " ", "\u3000", "\x01"),
    # As long as may be
    *("x" * MAX_NAME_CHARS, "x" * (MAX_NAME_CHARS - 1), "鱼" * MAX_NAME_CHARS, int("9" * 200)),
)  # fmt: skip


def same_name(name: str | int) -> str:
    """The name that is meant: an integer is its digits; NUL is removed, a lone surrogate, which
    nothing could store, is U+FFFD."""
    return str(name).replace("\x00", "").encode("utf-16", "replace").decode("utf-16", "replace")


def other_names() -> st.SearchStrategy[str | int]:
    """Names near those of `NAMES`, theirs among them, and any at all."""
    named = st.sampled_from(NAMES)
    texts = named.map(str)
    characters = st.characters(exclude_categories=["Cs"])
    return (
        named
        | st.tuples(texts, characters).map(lambda pair: "".join(pair))
        | st.tuples(characters, texts).map(lambda pair: "".join(pair))
        | texts.map(lambda name: name[:-1] or "-")
        | texts.map(str.swapcase)
        | texts.map(lambda name: unicodedata.normalize("NFKC", name))
        | texts.map(lambda name: unicodedata.normalize("NFD", name))
        | texts.map(lambda name: name.replace("a", "\x00a"))
        | st.text(characters, min_size=1, max_size=MAX_NAME_CHARS)
        | st.integers()
    )
