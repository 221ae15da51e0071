"""Collection: any OpenAI-compatible server answers, and what it does not report is on the span."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.fork_server import ltrain_command

from ltrain_train.gateway.connection import GatewayRefused

KEY = "sk-of-a-test"


@pytest.fixture
def collecting(vllm: Any, tmp_path: Path, load: Any) -> Any:
    stage = load("stage").Stage(vllm.url, tmp_path / "home")
    stage.collects = True
    return stage


def refuse_fields(vllm: Any, *fields: str) -> None:
    vllm.knows_token_ids = "return_token_ids" not in fields
    vllm.knows_logprobs = "logprobs" not in fields


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refused", "lost"),
    [
        ((), ["version"]),
        (("return_token_ids",), ["token_ids", "version"]),
        (("return_token_ids", "logprobs"), ["token_ids", "logprobs", "version"]),
    ],
)
def test_a_call_is_recorded_with_what_is_lost(
    collecting: Any, vllm: Any, refused: tuple[str, ...], lost: list[str], stream: bool
) -> None:
    refuse_fields(vllm, *refused)
    with collecting.running() as stage:
        answer = stage.ask("w3 w14", temperature=0.7, stream=stream)
        assert answer.status_code == 200
        assert "w14" in answer.text
        counts = stage.client.close_attempt(stage.identity, stage.key())
        assert (counts.llm_calls, counts.failures) == (1, 0)
    sent = vllm.requests[-1]
    added = ("return_token_ids", "logprobs")
    assert [name for name in added if name in sent] == [
        name for name in added if name not in refused
    ]
    attributes = stage.spans()[0]["attributes"]
    assert attributes["ltrain.unavailable"] == lost
    assert attributes["ltrain.policy.name"] == "policy"
    assert "ltrain.policy.version" not in attributes
    assert attributes["gen_ai.request.temperature"] == 0.7
    (output,) = json.loads(attributes["gen_ai.output.messages"])
    assert output["parts"][0]["content"].split() == ["w3", "w14"]
    assert ("ltrain.response_token_ids" in attributes) is ("token_ids" not in lost)


def test_every_api_is_collected(collecting: Any, vllm: Any) -> None:
    refuse_fields(vllm, "return_token_ids", "logprobs")
    user = [{"role": "user", "content": "w3"}]
    with collecting.running() as stage:
        for path, body in (
            ("/v1/completions", {"prompt": "w3"}),
            ("/v1/responses", {"input": "w3"}),
            ("/v1/messages", {"messages": user, "max_tokens": 9}),
        ):
            answer = stage.post(path, {"model": "policy", **body}, identity=None)
            assert (answer.status_code, "w3" in answer.text) == (200, True)
        for model in ("gpt-6", "policy@3"):  # a collected policy has no versions
            unknown = stage.ask("w3", identity=None, model=model)
            assert (unknown.status_code, "Choose from: policy." in unknown.text) == (404, True)
        health = stage.http.get("/health").json()
        assert (health["status"], health["version"]) == ("ready", None)
    assert len(stage.spans()) == 3


def test_no_version_is_served_or_published(collecting: Any) -> None:
    with collecting.running() as stage:
        with pytest.raises(GatewayRefused, match="only collects calls of the server at"):
            stage.client.load("policy", 1)
        with pytest.raises(GatewayRefused, match="'policy' has no version"):
            stage.client.current_version("policy")


def serve(vllm: Any, home: Path, *arguments: str) -> str:
    """Return what a server that cannot start prints."""
    command = [ltrain_command(), "serve", "--port", "0", "--upstream", vllm.url]
    environment = {**os.environ, "LTRAIN_HOME": str(home)}
    done = subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    return " ".join((done.stdout + done.stderr).split())


def test_a_command_collects_and_says_what_is_lost(
    vllm: Any, tmp_path: Path, load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_fields(vllm, "return_token_ids")
    monkeypatch.setenv("A_SERVERS_KEY", KEY)
    arguments = ("--upstream", f"{vllm.url}/v1", "--upstream-key-env", "A_SERVERS_KEY")
    with load("test_serve").serving(tmp_path / "home", Path("none"), *arguments) as served:
        ready = served.line("ltrain: gateway ready")
        assert ready.endswith(", policy policy, 4,096 tokens of prompt and response at most")
        notice = served.line("ltrain: model 'policy'")
        assert notice.endswith("does not report: token ids, the version of the model")
        assert served.ask("w3").json()["choices"][0]["message"]["content"] == "w3"
        assert not any(KEY in line for line in served.lines)
    assert {each["authorization"] for each in vllm.headers} == {f"Bearer {KEY}"}


def test_what_cannot_be_collected_is_refused_with_a_sentence(vllm: Any, tmp_path: Path) -> None:
    unset = serve(vllm, tmp_path / "a", "--upstream-key-env", "NO_SUCH_KEY")
    assert "Set NO_SUCH_KEY in the environment." in unset
    vllm.garbage = "<html>"
    assert "answers no chat completion, but '<html>'" in serve(vllm, tmp_path / "b")
    vllm.sick = True
    assert "refused a chat completion of model 'policy' with status 500" in serve(
        vllm, tmp_path / "c"
    )
