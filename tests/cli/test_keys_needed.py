"""The errors of a store that requires a key, without a key and with a wrong one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.up import running_up

from ltrain.doctor import collector, store
from ltrain_collector.access import Keys, Role
from ltrain_collector.errors import StoreUnreachable
from ltrain_collector.store import Store
from ltrain_instrument.instrumentors import State
from ltrain_train.runs.services import Services


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, dict[Role, str]]]:
    """Yield the ports of OTLP and SQL of `ltrain up`, and its keys by role."""
    folder = tmp_path_factory.mktemp("keyed") / "store"
    keys = {role: Keys(folder).make_key(role)[0] for role in (Role.INGEST, Role.QUERY)}
    with running_up(folder) as up:
        yield str(up.otlp), str(up.sql), keys


def test_doctor_reports_the_missing_key(
    keyed: tuple[str, str, dict[Role, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    otlp, sql, keys = keyed
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{otlp}")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_HEADERS", raising=False)
    for key, how in (("", "it requires a key"), ("any:lt_wrong@", "it refuses the key")):
        monkeypatch.setenv("LTRAIN_STORE", f"http://{key}127.0.0.1:{sql}")
        found = store(50)
        assert found.state is State.FAULT
        assert found.detail == f"http://127.0.0.1:{sql}: {how}"
        assert "with `ltrain key make query`" in found.fix
    monkeypatch.setenv("LTRAIN_STORE", f"http://any:{keys[Role.QUERY]}@127.0.0.1:{sql}")
    assert store(50).state is State.OK
    found = collector(50)
    assert found.state is State.FAULT
    assert found.fix.startswith("Set OTEL_EXPORTER_OTLP_HEADERS to its key")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"Authorization=Bearer%20{keys[Role.INGEST]}")
    assert collector(50).state is State.OK


@pytest.mark.parametrize(
    ("key", "how"), [("", "without a key"), ("any:lt_wrong@", "with this key or password")]
)
def test_a_store_that_needs_a_key_refuses_to_open(
    keyed: tuple[str, str, dict[Role, str]], key: str, how: str
) -> None:
    with pytest.raises(
        StoreUnreachable, match=rf"{how}\. Set a key that can read .*`ltrain key make"
    ):
        Store.open(f"http://{key}127.0.0.1:{keyed[1]}")


def test_a_run_finds_a_store_by_an_address_with_a_key(
    keyed: tuple[str, str, dict[Role, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, sql, keys = keyed
    monkeypatch.setenv("LTRAIN_STORE", f"http://any:{keys[Role.QUERY]}@127.0.0.1:{sql}")
    service = Services(tmp_path, policies=["p"])._store_service()
    assert service.health == f"http://127.0.0.1:{sql}/ping"
    assert keys[Role.QUERY] not in " ".join(service.command)
