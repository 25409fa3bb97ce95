"""The chart's README says what its values are; the values say what the schema takes."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
import yaml

from tests.charts.helm import CHART, ROOT, render
from tests.e2e.documents import blocks
from tickmind.settings import PREFIX, BrokerSettings, DatabaseSettings
from tickmind_migrations.rights import RIGHTS
from tools import chart_readme

_README = (CHART / "README.md").read_text(encoding="utf-8")
_VALUES = (CHART / "values.yaml").read_text(encoding="utf-8")


def test_table_of_values_is_up_to_date() -> None:
    assert chart_readme.with_tables(_README, chart_readme.find(_VALUES)) == _README, (
        "run: ./dev run python tools/chart_readme.py"
    )


def test_a_value_without_a_comment_is_told() -> None:
    with pytest.raises(ValueError, match=r"a\.b has no comment"):
        chart_readme.find("a:\n  b: 1\n")


def _paths(schema: dict[str, Any], root: dict[str, Any], path: str = "") -> set[str]:
    """Every value that the schema names, its mappings opened."""
    schema = root["definitions"][schema["$ref"].split("/")[-1]] if "$ref" in schema else schema
    if "properties" not in schema:
        return {path}
    found = set()
    for key, inner in schema["properties"].items():
        found |= _paths(inner, root, f"{path}.{key}".lstrip("."))
    return found


def test_schema_names_the_values_there_are_and_no_others() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    documented = {value.path for value in chart_readme.find(_VALUES)}
    named = _paths(schema, schema)
    # Resources and the like are documented as wholes; a user's keys are alike for all.
    assert {p for p in documented if not any(n == p or n.startswith(f"{p}.") for n in named)} == (
        set()
    )
    assert {n for n in named if not any(n == p or n.startswith(f"{p}.") for p in documented)} <= {
        "rabbitmq.bundled.admin.usernameKey"
    }


def test_values_shown_for_production_are_taken() -> None:
    [shown] = blocks("yaml", _README)
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(yaml.safe_load(shown), schema)


def test_roles_and_users_shown_are_those_that_are_granted() -> None:
    [shown] = blocks("sql", _README)
    assert set(re.findall(r"CREATE ROLE (\w+)", shown)) == {"tickmind", *RIGHTS}
    values = yaml.safe_load(_VALUES)
    names = {user["name"] for user in values["postgresql"]["users"].values()}
    assert names == {"tickmind", *RIGHTS}
    users = json.loads((CHART / "files/rabbitmq/users.json").read_text(encoding="utf-8"))
    assert users.keys() == {"admin", *values["rabbitmq"]["users"]}


def test_secrets_shown_are_those_that_are_read() -> None:
    shown = {
        f"tickmind-{server}-{user}"
        for users, server in re.findall(r"for user in ([\w ]+); do .*? tickmind-(\w+)-", _README)
        for user in users.split()
    }
    rendered = render("default", "fullnameOverride=tickmind")
    assert shown == {o["metadata"]["name"] for o in rendered.of("Secret")}


def test_servers_that_the_command_line_is_led_to_are_there() -> None:
    [shown] = [block for block in blocks("sh", _README) if "port-forward" in block]
    rendered = render("default", "fullnameOverride=tickmind")
    ports = {
        (service["metadata"]["name"], str(port["port"]))
        for service in rendered.of("Service")
        for port in service["spec"]["ports"]
    }
    led = re.findall(r"port-forward service/(\S+) \d+:(\d+)", shown)
    assert len(led) == 2
    assert set(led) <= ports
    read = re.findall(r"\(password (\S+)\)", shown)
    assert len(read) == 2
    assert set(read) <= {secret["metadata"]["name"] for secret in rendered.of("Secret")}
    values = yaml.safe_load(_VALUES)
    assert f"TICKMIND_AMQP_USER={values['rabbitmq']['users']['engine']['name']} " in shown
    assert set(re.findall(r"TICKMIND_\w+", shown)) <= {
        f"{PREFIX}{name.upper()}"
        for kind in (DatabaseSettings, BrokerSettings)
        for name in kind.model_fields
    }


def test_chart_says_what_artifact_hub_shows() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    annotations = chart["annotations"]
    assert annotations["artifacthub.io/license"] == "Apache-2.0"
    values = yaml.safe_load(_VALUES)
    bundled = [values[server]["bundled"]["image"] for server in ("postgresql", "rabbitmq")]
    listed = yaml.safe_load(annotations["artifacthub.io/images"])
    assert [i["image"] for i in listed] == [f"{b['repository']}:{b['tag']}" for b in bundled]
    for change in yaml.safe_load(annotations["artifacthub.io/changes"]):
        assert change.keys() == {"kind", "description"}
    assert (ROOT / "LICENSE").exists()
