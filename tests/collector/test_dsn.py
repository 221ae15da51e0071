from pathlib import Path

import pytest

from ltrain_collector.dsn import Folder, Server, local_folder, parse_dsn
from ltrain_collector.errors import BadDsn
from ltrain_instrument.addresses import announce


@pytest.mark.parametrize(
    ("dsn", "address"),
    [
        ("chdb:///data/store", Folder(Path("/data/store"))),
        ("chdb://store", Folder(Path.cwd() / "store")),
        ("chdb:///with%20space", Folder(Path("/with space"))),
        ("http://127.0.0.1:8123", Server("127.0.0.1")),
        ("http://db", Server("db", 8123)),
        ("https://db", Server("db", 8443, secure=True)),
        (
            "clickhouse://me:p%40ss@db:9123/otel",
            Server("db", 9123, user="me", password="p@ss", database="otel"),
        ),
    ],
)
def test_addresses_are_read(dsn: str, address: Folder | Server) -> None:
    assert parse_dsn(dsn) == address


@pytest.mark.parametrize(
    ("dsn", "says"),
    [
        ("chbd:///data", "did you mean chdb://"),
        ("htp://db", "did you mean http://"),
        ("/data/store", "needs a scheme"),
        ("chdb:/data", "Allowed: chdb:///dir"),
        ("chdb://", "names no folder"),
        ("chdb:///data?mode=ro", "a folder has no options"),
        ("http://:8123", "names no host"),
        ("http://db:http", "Port could not be cast"),
    ],
)
def test_a_typo_is_named_with_what_is_allowed(dsn: str, says: str) -> None:
    with pytest.raises(BadDsn) as caught:
        parse_dsn(dsn)
    assert says in str(caught.value)
    assert dsn in str(caught.value)


@pytest.mark.parametrize(
    ("address", "folder"),
    [
        (None, Path("/home/store")),
        (Server("127.0.0.1", 9000), Path("/home/store")),
        (Server("localhost"), Path("/home/store")),
        (Server("::1"), Path("/home/store")),
        (Folder(Path("/data/store")), Path("/data/store")),
        (Server("db"), None),
        (Server("127.0.0.1.evil.example"), None),
    ],
)
def test_a_store_on_this_machine_has_its_folder(
    address: Folder | Server | None, folder: Path | None
) -> None:
    assert local_folder(address, Path("/home")) == folder


def test_a_password_is_not_printed() -> None:
    server = parse_dsn("clickhouse://me:secret@db")
    assert "secret" not in f"{server} {server!r}"


def test_a_store_that_runs_has_the_folder_that_it_announces(tmp_path: Path) -> None:
    announced = {"store": "http://127.0.0.1:9002", "folder": "/data/store"}
    with announce(tmp_path, "up", announced):
        assert local_folder(None, tmp_path) == Path("/data/store")
        assert local_folder(Server("localhost", 9002), tmp_path) == Path("/data/store")
        assert local_folder(Server("localhost", 8123), tmp_path) == tmp_path / "store"
    assert local_folder(None, tmp_path) == tmp_path / "store"
