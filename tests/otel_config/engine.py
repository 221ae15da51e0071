"""`python engine.py DIRECTORY`: chDB as one node of a cluster, in a process of its own.

Reads `{"users": path or "", "as": role or "", "run": [statement, …]}` from standard input and
writes for each statement what came: rows, or the code of the error. The cluster has one shard.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import chdb

CONFIG = """<clickhouse>
<tcp_port>9000</tcp_port>
<users_config>{users}</users_config>
<macros><cluster>ltrain</cluster><shard>1</shard><replica>one</replica></macros>
<remote_servers><ltrain><shard><internal_replication>true</internal_replication>
<replica><host>127.0.0.1</host><port>9000</port></replica>
</shard></ltrain></remote_servers>
</clickhouse>"""
DEFAULTS = (
    "<clickhouse><profiles><default/></profiles><users/><quotas><default/></quotas></clickhouse>"
)


def users(path: str, role: str) -> str:
    """Return the users of `path`, and chDB's own user `default` with `role`."""
    root = ElementTree.parse(path).getroot() if path else ElementTree.fromstring(DEFAULTS)
    profiles, everyone = root.find("profiles"), root.find("users")
    assert profiles is not None and everyone is not None
    if profiles.find("default") is None:
        ElementTree.SubElement(profiles, "default")
    if root.find("quotas") is None:
        ElementTree.SubElement(ElementTree.SubElement(root, "quotas"), "default")
    profile = role if profiles.find(role or "default") is not None else "default"
    grants = f"<grants><query>GRANT {role}</query></grants>" if role else ""
    everyone.append(
        ElementTree.fromstring(
            "<default><password/><networks><ip>::/0</ip></networks>"
            f"<profile>{profile or 'default'}</profile><quota>default</quota>{grants}</default>"
        )
    )
    return ElementTree.tostring(root, encoding="unicode")


def main() -> None:
    directory, request = Path(sys.argv[1]), json.load(sys.stdin)
    directory.mkdir(exist_ok=True)
    (directory / "users.xml").write_text(users(request["users"], request["as"]))
    (directory / "config.xml").write_text(CONFIG.format(users=directory / "users.xml"))
    connect: Any = chdb.connect
    connection = connect(f"{directory}/data?config-file={directory}/config.xml")
    json.dump([_run(connection, each) for each in request["run"]], sys.stdout)
    connection.close()


def _run(connection: Any, statement: str) -> Any:
    try:
        text = connection.query(statement, "JSONCompactEachRow").bytes().decode()
    except RuntimeError as error:
        found = re.search(r"Code: (\d+)", str(error))
        return {"code": int(found[1]) if found else 0, "error": str(error)[:500]}
    return [json.loads(line) for line in text.splitlines()]


if __name__ == "__main__":
    main()
