"""`space`: which model recalls use, and how it is changed without a moment of amnesia."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tickmind.cli.output import examples

if TYPE_CHECKING:
    from tickmind.cli.comparing import Comparison
    from tickmind.store.changing import SpaceState

__all__ = ["register"]

_PANEL = "Look after it"

_EXAMPLE = examples(
    "tickmind space add --profile gemini-embedding-2",
    "tickmind space backfill",
    "tickmind space compare",
    "tickmind space activate gemini-embedding-2",
    "tickmind space drop gemini-embedding-001",
    "tickmind space reindex",
)
_ADD_EXAMPLE = examples(
    "tickmind space add --profile text-embedding-3-large",
    "tickmind space add --profile vllm --base-url http://gpu:8000/v1 --model my-model"
    " --dimensions 1024 --set max_inputs=64",
    after="--set takes the names of TICKMIND_EMBEDDING_*, without that, in lower case.",
)

Named = Annotated[str, typer.Argument(metavar="SPACE", help="Its id, or its model's name.")]
Building = Annotated[
    str | None,
    typer.Argument(metavar="SPACE", help="Its id, or its model's name; the one being filled."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    space = typer.Typer(no_args_is_help=True, epilog=_EXAMPLE)
    space.command("list", epilog=_EXAMPLE)(list_spaces)
    space.command("add", epilog=_ADD_EXAMPLE)(add)
    space.command("backfill", epilog=_EXAMPLE)(backfill)
    space.command("compare", epilog=_EXAMPLE)(compare)
    space.command("activate", epilog=_EXAMPLE)(activate)
    space.command("drop", epilog=_EXAMPLE)(drop)
    space.command("reindex", epilog=_EXAMPLE)(reindex)
    space.command("collect", epilog=_EXAMPLE)(collect)
    about = "Change the model while recalls go on: add, backfill, compare, activate, drop."
    app.add_typer(space, name="space", help=about, rich_help_panel=_PANEL)


def list_spaces(as_json: Json = False) -> None:
    """List the embedding spaces, and how far each is filled."""
    from tickmind.cli.output import print_json, say, table
    from tickmind.cli.servers import database_settings
    from tickmind.cli.spaces import listed

    found = asyncio.run(listed(database_settings()))
    if as_json:
        print_json([space_json(state) for state in found])
        return
    if not found:
        say("no embedding space yet: the first embedder makes the one its settings name")
        return
    rows = [
        [s.id, s.model, s.dimensions, s.status, s.indexed, s.pending, s.parked, s.embeddings,
         "building" if s.building else "yes" if s.signed else "-",
         (s.served or {}).get("base_url", "-")]
        for s in found
    ]  # fmt: skip
    headings = ["id", "model", "dimensions", "status", "indexed", "pending", "parked", "vectors"]
    say(table([*headings, "signatures", "endpoint"], rows))


def space_json(state: SpaceState) -> dict[str, Any]:
    """A space as every command prints it."""
    return {
        "id": state.id,
        "status": state.status,
        "generation": state.generation_id,
        "signed": state.signed,
        "reindexing": state.building,
        "model": state.model,
        "dimensions": state.dimensions,
        "document_prefix": state.document_prefix,
        "query_prefix": state.query_prefix,
        "served": state.served,
        "indexed": state.indexed,
        "pending": state.pending,
        "parked": state.parked,
        "vectors": state.embeddings,
        "saved_by_deduplication": state.saved,
        "activated_at": state.activated_at,
    }


def add(
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A provider's profile; TICKMIND_EMBEDDING_* of here if unset."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model's name.")] = None,
    base_url: Annotated[str | None, typer.Option(metavar="URL", help="The endpoint.")] = None,
    dimensions: Annotated[int | None, typer.Option(help="Width kept, at most 1536.")] = None,
    more: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Add a space, to be filled beside the one recalls use. It costs one embedding of every text.

    New memories go into both from now on; those of before follow in the background.
    Recalls go on as they are.
    """
    from tickmind.cli.output import print_json, say
    from tickmind.cli.servers import database_settings
    from tickmind.cli.spaces import added, settings_to_add
    from tickmind.serving import name_of

    given = {"model": model, "base_url": base_url, "dimensions": dimensions}
    state, marked = asyncio.run(added(database_settings(), settings_to_add(profile, given, more)))
    if as_json:
        print_json(space_json(state) | {"marked": marked})
        return
    if state.status == "active":
        say(f"recalls use {name_of(state.space)} (space {state.id}) already")
        return
    say(
        f"space {state.id}, {name_of(state.space)}: {marked} memories are to be embedded",
        "Embedders begin within seconds; an endpoint other than TICKMIND_EMBEDDING_BASE_URL gets"
        " TICKMIND_EMBEDDING_NEXT_API_KEY. See `tickmind space backfill`.",
    )


def backfill(
    space: Building = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return at once.")] = False,
    as_json: Json = False,
) -> int:
    """Have all memories embedded for a space, and wait until they are. May be run again."""
    from tickmind.cli.output import note, print_json, say
    from tickmind.cli.servers import database_settings
    from tickmind.cli.spaces import filled
    from tickmind.serving import name_of

    state, marked = asyncio.run(filled(database_settings(), space, wait=not no_wait))
    if as_json:
        print_json(space_json(state) | {"marked": marked})
    else:
        say(
            f"space {state.id}, {name_of(state.space)}: {state.indexed} memories indexed,"
            f" {state.pending} pending"
        )
    if state.parked:
        note(f"{state.parked} memories were given up on: see `tickmind parked list`")
    return 1 if state.parked else 0


def compare(
    space: Building = None,
    queries: Annotated[
        int, typer.Option(min=1, max=1000, help="Memories whose texts are the queries.")
    ] = 50,
    k: Annotated[int, typer.Option("-k", "--k", min=1, max=100, help="Best compared.")] = 5,
    least: Annotated[int, typer.Option(min=0, help="Show queries that agree least.")] = 3,
    as_json: Json = False,
) -> None:
    """Compare what comes to mind in a space with what does in the one recalls use.

    Texts of sampled memories stand for what their agents see, and are embedded in both spaces.
    That calls both providers, with the keys of the environment.
    Compared are the most relevant other texts of that agent, among those that both spaces have.
    """
    from tickmind.cli.comparing import compared
    from tickmind.cli.output import print_json
    from tickmind.cli.servers import database_settings

    found = asyncio.run(compared(database_settings(), space, queries=queries, k=k))
    if as_json:
        print_json(found.as_json(least=least))
    else:
        _show_comparison(found, least=least)


def _show_comparison(found: Comparison, *, least: int) -> None:
    from tickmind.cli.output import safe, say, table
    from tickmind.serving import name_of

    say(
        f"active: {name_of(found.active.space)} (space {found.active.id}); compared:"
        f" {name_of(found.other.space)} (space {found.other.id}, {found.other.pending} pending)"
    )
    rows = [[f"{shared} of {found.k}", count] for shared, count in found.by_shared()]
    say(table([f"best {found.k} in common", "queries"], rows))
    for query in found.least(least):
        say("", safe(f"{query.shared} of {found.k}: {query.content[:200]}"))
        for where, texts in (("active  ", query.only_active), ("compared", query.only_other)):
            for text in texts:
                say(safe(f"  only {where}  {text[:200]}"))
    say("", f"overlap of the best {found.k}: {found.overlap:.3f} over {len(found.queries)} queries")


def activate(
    space: Named,
    force: Annotated[
        bool, typer.Option("--force", help="At once, though recalls forget what is not in it yet.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Have recalls use a space; retrievers follow within seconds. The way back is the same.

    A space that is missing something is refused.
    One that was used before first gets what came since, and is waited for.
    The space before is kept as it is, until it is dropped.
    """
    from tickmind.cli.hnsw_indexes import note_superseded
    from tickmind.cli.output import print_json, say
    from tickmind.cli.servers import database_settings
    from tickmind.cli.spaces import activated
    from tickmind.serving import name_of

    settings = database_settings()
    before, now = asyncio.run(activated(settings, space, force=force))
    asyncio.run(note_superseded(settings))
    if as_json:
        print_json({"before": before.id if before else None, "space": space_json(now)})
        return
    if before is None:
        say(f"recalls use {name_of(now.space)} (space {now.id}) already")
        return
    say(
        f"recalls use {name_of(now.space)} (space {now.id}) from now on",
        f"Back: `tickmind space activate {before.id}`. For good: `tickmind space drop {before.id}`,"
        " and TICKMIND_EMBEDDING_* of the new one with the next restart.",
    )


def drop(space: Named, yes: Yes = False, as_json: Json = False) -> int:
    """Delete a space with its vectors, unless recalls use it; asks first. May be run again."""
    from tickmind.cli.output import print_json, say
    from tickmind.cli.servers import database_settings
    from tickmind.cli.spaces import dropped
    from tickmind.serving import name_of

    gone = asyncio.run(dropped(database_settings(), space, yes=yes))
    if gone is None:
        return 1
    if as_json:
        print_json(space_json(gone))
    else:
        say(f"dropped space {gone.id}, {name_of(gone.space)}: {gone.embeddings} vectors")
    return 0


def reindex(as_json: Json = False) -> int:
    """Build the recall index anew over the space that recalls use, with a mean of now; recalls
    go on.

    It costs no embedding. Embedders do so once by themselves; where one is at it already, this
    waits. May be interrupted: an embedder, or this command, goes on with it.
    """
    from tickmind.cli.hnsw_indexes import note_superseded
    from tickmind.cli.output import note, print_json, say
    from tickmind.cli.reindexing import reindexed
    from tickmind.cli.servers import database_settings
    from tickmind.serving import name_of

    settings = database_settings()
    state = asyncio.run(reindexed(settings))
    if state is None:
        note("too few texts are embedded to know what they have in common: 32 are needed")
        return 1
    if as_json:
        print_json(space_json(state))
    else:
        say(
            f"space {state.id}, {name_of(state.space)}: {state.indexed} memories indexed anew"
            f" (generation {state.generation_id}); an embedder deletes the index before"
        )
    asyncio.run(note_superseded(settings))
    return 0


def collect(as_json: Json = False) -> None:
    """Delete vectors that no memory uses any more. Idle embedders do so by themselves."""
    from tickmind.cli.output import print_json, say
    from tickmind.cli.servers import database_settings
    from tickmind.cli.spaces import collected

    vectors = asyncio.run(collected(database_settings()))
    if as_json:
        print_json({"vectors": vectors})
    else:
        say(f"{vectors} unused vectors deleted")
