"""A child process with its own environment gets no secret that the agent did not pass."""

import pytest

from ltrain_instrument.lifecycle import subprocesses

LAUNCHED = "/lib/opentelemetry/instrumentation/auto_instrumentation"
SECRETS = {
    "LTRAIN_STORE": "http://any:lt_admin@127.0.0.1:8123",
    "LTRAIN_STORE_SECRET": "the store's secret of 32 characters",
    "LTRAIN_GATEWAY_SECRET": "the gateway's secret of 32 characters",
    "LTRAIN_FORWARD_HEADERS": "authorization=Basic%20a",
    "LTRAIN_FORWARD_LANGFUSE_HEADERS": "authorization=Basic%20b",
}


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "agent")


def test_settings_go_along_without_secrets() -> None:
    child = subprocesses.child_environment({"PYTHONPATH": LAUNCHED})
    assert child["OTEL_SERVICE_NAME"] == "agent"
    assert not SECRETS.keys() & child.keys()


def test_what_the_agent_hands_on_itself_stays() -> None:
    assert (
        subprocesses.child_environment({"PYTHONPATH": LAUNCHED, **SECRETS}).items()
        >= SECRETS.items()
    )
    assert subprocesses.child_environment(None).items() >= SECRETS.items()
