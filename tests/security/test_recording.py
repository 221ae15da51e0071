"""The gateway sends no response that it did not record, with a full disk or without a collector."""

import time
from pathlib import Path

import httpx
import pytest
from tests.train.gateway.stage import IDENTITY, Stage

from ltrain_instrument.identity import Identity
from ltrain_train.gateway import GatewayRefused


@pytest.fixture(autouse=True)
def one_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway's spool holds one MiB, and no collector empties it."""
    monkeypatch.setenv("LTRAIN_SPOOL_LIMIT", "1")


def message(response: httpx.Response) -> str:
    return str(response.json()["error"]["message"])


def fill(stage: Stage) -> Path:
    ballast = stage.home / "services" / "spool" / "ballast"
    ballast.parent.mkdir(parents=True, exist_ok=True)
    ballast.write_bytes(bytes(2 << 20))
    return ballast


@pytest.mark.parametrize("identity", [IDENTITY, None], ids=["attempt", "production"])
def test_a_response_that_cannot_be_recorded_is_not_sent(
    stage: Stage, identity: Identity | None
) -> None:
    ballast = fill(stage)
    response = stage.ask("w3", identity=identity)
    assert response.status_code == 503
    assert "cannot record the call, so it sends no response" in message(response)
    assert "LTRAIN_SPOOL_LIMIT" in message(response)
    health = stage.http.get("/health").json()
    assert "LTRAIN_SPOOL_LIMIT" in health["recording"]
    assert health["status"] == "ready"

    ballast.unlink()
    time.sleep(1.1)  # the spool is measured again after a second
    assert stage.ask("w3", identity=identity).status_code == 200
    assert stage.http.get("/health").json()["recording"] == "ok"
    assert len([span for span in stage.spans() if span["name"] == "chat policy"]) == 1


def test_a_stream_ends_with_an_error_instead_of_its_last_chunk(stage: Stage) -> None:
    fill(stage)
    response = stage.ask("w3 w4", stream=True)
    events = [event for event in response.text.split("\n\n") if event]
    assert "cannot record" in events[-1] and '"code":503' in events[-1]
    assert "[DONE]" not in response.text
    assert '"finish_reason": "stop"' not in response.text


def test_a_refusal_of_vllm_that_cannot_be_recorded_is_not_sent_either(stage: Stage) -> None:
    ballast = fill(stage)
    response = stage.ask("long")
    assert (response.status_code, "cannot record" in message(response)) == (503, True)
    ballast.unlink()
    time.sleep(1.1)  # the spool is measured again after a second
    assert stage.ask("long").status_code == 400
    counts = stage.client.close_attempt(IDENTITY, stage.key())
    assert (counts.llm_calls, counts.spans, counts.failures) == (0, 1, 0)


def test_what_was_not_recorded_is_an_outage_and_so_is_an_end_that_was_not(stage: Stage) -> None:
    ballast = fill(stage)
    assert stage.ask("w3").status_code == 503
    with pytest.raises(GatewayRefused, match="cannot record"):
        stage.client.close_attempt(IDENTITY, stage.key())
    ballast.unlink()
    counts = stage.client.close_attempt(IDENTITY, stage.key())
    assert (counts.llm_calls, counts.spans, counts.failures) == (0, 0, 1)
