"""With a damaged file of keys, every request is refused with one sentence."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.http_requests import ask, post
from tests.security.servers import Up, collector

from ltrain_collector.access import Keys, Role, sign_service, store_secret
from ltrain_collector.access.keys import BadKeys
from ltrain_collector.errors import HttpError

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
    key, _ = Keys(home / "store").make_key(Role.ADMIN)
    with collector(home) as up:
        yield up, key


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_clients_get_an_error_and_every_request_is_refused(
    keyed: tuple[Up, str], content: bytes
) -> None:
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
        keys.authenticate({})
    (tmp_path / "store.keys.json").unlink()
    (tmp_path / "store.keys.json").mkdir()
    with pytest.raises(BadKeys, match=r"store\.keys\.json"):
        keys.authenticate({})


def test_keys_behind_a_link_are_read_anew(tmp_path: Path) -> None:
    made = Keys(tmp_path / "elsewhere" / "store")
    first, entry = made.make_key(Role.QUERY)
    (tmp_path / "store.keys.json").symlink_to(tmp_path / "elsewhere" / "store.keys.json")
    keys = Keys(tmp_path / "store")
    bearer = {"authorization": f"Bearer {first}"}
    assert keys.require_key(bearer).role == Role.QUERY
    made.revoke_key(entry.id)
    with pytest.raises(HttpError, match="revoked"):
        keys.require_key(bearer)


def test_another_secret_revokes_signed_keys_that_were_known(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "store")
    bearer = {"authorization": f"Bearer {sign_service(store_secret(tmp_path / 'store'), 3600)}"}
    assert keys.require_key(bearer).role == Role.SERVICE
    (tmp_path / "store.secret").write_text("another" * 10)
    with pytest.raises(HttpError, match="This key is unknown"):
        keys.require_key(bearer)


@pytest.mark.parametrize("content", [b"", b"short", b"\xff\xfe" * 32, None])
def test_a_damaged_secret_is_reported_and_every_signed_key_refused(
    tmp_path: Path, content: bytes | None
) -> None:
    damages: list[None] = []
    keys = Keys(tmp_path / "store", lambda: damages.append(None))
    bearer = {"authorization": f"Bearer {sign_service(store_secret(tmp_path / 'store'), 3600)}"}
    assert keys.require_key(bearer).role == Role.SERVICE
    secret = tmp_path / "store.secret"
    secret.unlink()
    secret.mkdir() if content is None else secret.write_bytes(content)
    with pytest.raises(BadKeys, match=r"store\.secret.*ltrain makes another") as refused:
        keys.require_key(bearer)
    assert refused.value.status == 503
    assert len(damages) == 1


def test_clients_get_an_error_about_a_damaged_secret(keyed: tuple[Up, str]) -> None:
    up, key = keyed
    secret = up.home / "store.secret"
    whole, shown = secret.read_bytes(), up.owner
    bearer = {"Authorization": f"Bearer {key}"}
    before = up.blocked(**bearer)["keys"]
    secret.write_bytes(b"\xff")
    try:
        answers = [
            ask(up.sql, "GET", "/?query=SELECT+1", headers=shown),
            post(up.otlp, b"", **shown),
        ]
        with grpc.insecure_channel(f"127.0.0.1:{up.grpc}") as channel:
            method = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
            metadata = (("authorization", shown["Authorization"]),)
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(method)(b"", metadata=metadata, timeout=60)
        assert up.run("SELECT 1", **bearer).text == "1\n"
    finally:
        secret.write_bytes(whole)
    assert [answer.status for answer in answers] == [503] * 2
    assert all(b"store.secret" in answer.body for answer in answers)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    assert up.blocked(**bearer)["keys"] >= before + 3
    assert up.run("SELECT 1", **shown).text == "1\n"


def test_a_server_does_not_start_over_damaged_keys(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "store.keys.json").write_text("{")
    with pytest.raises(AssertionError) as ended, collector(tmp_path / "home"):
        pass
    text = str(ended.value)
    assert "ltrain: The store's keys" in text and "ltrain key make" in text
    assert "Traceback" not in text
