"""Give a RabbitMQ its users and their rights, as definitions: in a file that it loads at each
start, or sent to its management API.

Reads users.json (tags and permissions by user) beside this file, and from the environment VHOST
and, for each user, USER_<NAME> and PASSWORD_<NAME>; so passwords stand in Secrets alone. Its
argument is the path to write, or the URL of the management API, where ADMIN is who sends them.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Hashing a few passwords takes a moment; a broker that has just started may take longer.
SEND_S = 60


def definitions(users: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """RabbitMQ's definitions: the virtual host, users with passwords, permissions."""
    vhost = environment["VHOST"]
    named = {name: environment[f"USER_{name.upper()}"] for name in users}
    return {
        "vhosts": [{"name": vhost}],
        "users": [
            {
                "name": named[name],
                "password": environment[f"PASSWORD_{name.upper()}"],
                "tags": user["tags"],
            }
            for name, user in users.items()
        ],
        "permissions": [
            {"user": named[name], "vhost": vhost, **user["permissions"]}
            for name, user in users.items()
        ],
    }


def send(url: str, body: str, environment: Mapping[str, str]) -> None:
    """To the management API at `url`. Raises OSError where that refuses."""
    who = f"{environment['USER_ADMIN']}:{environment['PASSWORD_ADMIN']}"
    headers = {
        "authorization": f"Basic {base64.b64encode(who.encode()).decode()}",
        "content-type": "application/json",
    }
    request = urllib.request.Request(
        f"{url.rstrip('/')}/api/definitions", data=body.encode(), headers=headers, method="POST"
    )
    with urllib.request.urlopen(request, timeout=SEND_S):
        pass


if __name__ == "__main__":
    known = json.loads((Path(__file__).parent / "users.json").read_text(encoding="utf-8"))
    target, told = sys.argv[1], json.dumps(definitions(known, os.environ))
    if target.startswith(("http://", "https://")):
        send(target, told, os.environ)
    else:
        Path(target).write_text(told, encoding="utf-8")
    print(f"users and their rights are in {target}")
