"""A run with store or gateway of another home stops before it makes rollouts."""

from contextlib import closing
from pathlib import Path

import pytest
from tests.fake_vllm import FakeVllm
from tests.security.servers import collector, gateway

from ltrain_collector.access import store_secret
from ltrain_train.errors import ForeignStore
from ltrain_train.gateway import GatewayClient, GatewayRefused
from ltrain_train.store import home_secret, require_own_store


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LTRAIN_STORE", "LTRAIN_STORE_SECRET", "OTEL_EXPORTER_OTLP_HEADERS"):
        monkeypatch.delenv(name, raising=False)


def test_the_store_of_this_home_is_used_and_anothers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    with collector(tmp_path / "home") as up:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{up.otlp}")
        require_own_store(up.home)
        with pytest.raises(ForeignStore, match="set LTRAIN_STORE_SECRET"):
            require_own_store(other)  # it has no store
        (other / "store").mkdir(parents=True)
        store_secret(other / "store")
        with pytest.raises(ForeignStore, match="signed with the secret of"):
            require_own_store(other)  # its key is another's
        monkeypatch.setenv("LTRAIN_STORE_SECRET", store_secret(up.home / "store"))
        require_own_store(other)


def test_a_collector_that_is_away_or_not_ltrains_is_none_of_its_business(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    require_own_store(tmp_path)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://otel.example:4318")
    require_own_store(tmp_path)


def test_the_gateway_of_this_home_is_used_and_anothers_is_refused(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    with FakeVllm() as vllm, gateway(home, vllm.url) as port:
        url = f"http://127.0.0.1:{port}"
        with closing(GatewayClient(url, home_secret(home))) as client:
            client.require_running()
        with (
            closing(GatewayClient(url, home_secret(other))) as client,
            pytest.raises(GatewayRefused, match="It may be of another LTRAIN_HOME"),
        ):
            client.require_running()
