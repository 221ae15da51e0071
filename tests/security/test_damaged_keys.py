"""A damaged file of keys is told in one sentence, and lets nobody in."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.asking import ask, post
from tests.security.servers import Up, collector

from ltrain_collector.grants import Role
from ltrain_collector.keys import BadKeys, Keys

DAMAGED = {
    "empty": b"",
    "cut": b'[{"id": "ab',
    "an object": b"{}",
    "null": b"null",
    "rows of something": b"[1, 2]",
    "an unknown role": b'[{"id": "a", "role": "root", "digest": "d", "created": 1.0}]',
    "more fields": b'[{"id": "a", "role": "admin", "digest": "d", "created": 1.0, "x": 1}]',
    "no text": b"\xff\xfe\x00",
    "deep": b"[" * 100_000,
}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Up, str]]:
    home = tmp_path_factory.mktemp("keyed") / "home"
    key, _ = Keys(home / "store").make(Role.ADMIN)
    with collector(home) as up:
        yield up, key


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_clients_hear_so_and_nobody_is_let_in(keyed: tuple[Up, str], content: bytes) -> None:
    up, key = keyed
    file = up.home / "store.keys.json"
    whole = file.read_bytes()
    bearer = {"Authorization": f"Bearer {key}"}
    before = up.blocked(**bearer)["keys"]
    file.write_bytes(content)
    try:
        for headers in ({}, bearer):
            answers = [
                ask(up.sql, "GET", "/?query=SELECT+1", headers=headers),
                post(up.otlp, b"", **headers),
                ask(up.otlp, "GET", "/metrics", headers=headers),
            ]
            assert [answer.status for answer in answers] == [503] * 3
            assert all(b"store.keys.json" in answer.body for answer in answers)
            assert all(b"ltrain key make" in answer.body for answer in answers)
        with grpc.insecure_channel(f"127.0.0.1:{up.grpc}") as channel:
            method = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(method)(b"", timeout=60)
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    finally:
        file.write_bytes(whole)
    assert up.run("SELECT 1", **bearer).text == "1\n"
    assert up.blocked(**bearer)["keys"] >= before + 7


def test_keys_that_are_a_broken_link_or_a_folder_are_damaged(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "store")
    (tmp_path / "store.keys.json").symlink_to(tmp_path / "away")
    with pytest.raises(BadKeys, match=r"store\.keys\.json"):
        keys.enter({})
    (tmp_path / "store.keys.json").unlink()
    (tmp_path / "store.keys.json").mkdir()
    with pytest.raises(BadKeys, match=r"store\.keys\.json"):
        keys.enter({})


def test_a_server_does_not_start_over_damaged_keys(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "store.keys.json").write_text("{")
    with pytest.raises(AssertionError) as ended, collector(tmp_path / "home"):
        pass
    text = str(ended.value)
    assert "ltrain: The store's keys" in text and "ltrain key make" in text
    assert "Traceback" not in text
