"""Write the definitions that the bundled RabbitMQ loads at each start: its users and their rights.

Reads users.json (tags and permissions by user) beside this file, and from the environment VHOST
and, for each user, USER_<NAME> and PASSWORD_<NAME>; so passwords stand in Secrets alone. Writes
to the path given as its argument.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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


if __name__ == "__main__":
    known = json.loads((Path(__file__).parent / "users.json").read_text(encoding="utf-8"))
    target = Path(sys.argv[1])
    target.write_text(json.dumps(definitions(known, os.environ)), encoding="utf-8")
    print(f"{target} written")
