"""`ltrain serve --on tinker` as a user runs it: an agent, the gateway and a fake Tinker server."""

import json
import os
import signal
import time
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.model_files import write_tensors
from tests.tinker_model import END, teach, write_model
from tests.tinker_server import TinkerServer
from tests.train.gateway.stage import spans_on_disk
from tests.train.gateway.test_serve import WAIT, Served, refusal, serving
from tokenizers import Tokenizer

from ltrain_collector.access import AttemptKey
from ltrain_instrument import attributes
from ltrain_instrument.clock import Deadline
from ltrain_instrument.identity import Identity
from ltrain_train.gateway.client import GatewayClient
from ltrain_train.gateway.connection import GatewayRefused
from ltrain_train.gateway.serving.tinker import PROGRAM
from ltrain_train.overlays import TINKER
from ltrain_train.policy import Policies, TinkerWeights
from ltrain_train.store import home_secret

TINKER.add()
import tinker  # noqa: E402

CALL = ' {"name": "add", "arguments": {"a": 1}} '
TEXTS = ("Hello there", CALL, "It is 4.", "again")
TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")


@pytest.fixture
def server() -> Iterator[TinkerServer]:
    with TinkerServer() as server:
        yield server


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return write_model(tmp_path / "model", TEXTS)


def on(server: TinkerServer, *arguments: str) -> list[str]:
    parser = ("--", "--tool-call-parser", "hermes")
    return ["--on", "tinker", "--base-url", server.url, *arguments, *parser]


def train(server: TinkerServer, folder: Path, name: str) -> str:
    """Save an adapter at the server, write its artifact, and return its path."""
    run = tinker.ServiceClient(base_url=server.url).create_lora_training_client("tiny", rank=4)
    path = str(run.save_weights_for_sampler(name).result().path)
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 32, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    layer = "base_model.model.layer.lora_"
    shapes = {f"{layer}A.weight": (4, 4), f"{layer}B.weight": (4, 4)}
    write_tensors(folder / "adapter_model.safetensors", shapes)
    TinkerWeights(base_model="tiny", sampler=path).write(folder)
    return path


def attempt(served: Served, home: Path) -> openai.OpenAI:
    """Return the client of an attempt in training."""
    identity = Identity(run="demo", rollout="abc", attempt=1, mode="train")
    sampling = {"temperature": 1.0}
    claims = AttemptKey(
        identity=identity, policy="policy", sampling=sampling, expires=Deadline.after(600)
    )
    url = f"{served.url}/rollout/abc/attempt/1/v1"
    key = claims.sign(home_secret(home))
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=WAIT)


def recorded(home: Path) -> list[dict[str, Any]]:
    """Return the attributes of the spans of calls, oldest first, with their ids as lists."""
    spans = [span["attributes"] for span in spans_on_disk(home) if span["name"] == "chat policy"]
    names = (attributes.PROMPT_TOKEN_IDS, attributes.RESPONSE_TOKEN_IDS)
    return [span | {name: json.loads(span[name]) for name in names} for span in spans]


def test_an_agent_sees_openais_chat_and_the_gateway_records_what_was_sampled(
    server: TinkerServer, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    home, new_line = tmp_path / "home", tokenizer.token_to_id("Ċ")
    hello, call, four = map(tokenizer.token_to_id, ("Hello there", CALL, "It is 4."))
    opening, closing = map(tokenizer.token_to_id, ("<tool_call>", "</tool_call>"))
    teach(server, new_line, hello, opening, call, closing, END)
    messages: Any = [{"role": "user", "content": "hi"}]
    with serving(home, "", str(tmp_path / "model"), *on(server, "--lora-rank", "4")) as served:
        assert "v0, 256 tokens of prompt and" in served.line("ltrain: gateway ready")
        assert served.line("ltrain: publish = adapter: a Tinker server samples its base model")
        with attempt(served, home) as agent:
            first = agent.chat.completions.create(
                model="policy", messages=messages, tools=TOOLS, max_tokens=9
            )
            message = first.choices[0].message
            assert message.content == "Hello there"
            assert first.choices[0].finish_reason == "tool_calls"
            assert message.tool_calls is not None
            [first_call] = message.tool_calls
            assert first_call.type == "function"
            assert first_call.function.arguments == '{"a":1}'
            policies = Policies(home)
            path = train(server, tmp_path / "adapter", "one")
            table = server.checkpoints[path].table
            table[new_line] = -80.0
            table[new_line, four], table[four], table[four, END] = 80.0, -40.0, 80.0
            assert policies.add("policy", tmp_path / "adapter") == 1
            client = GatewayClient(served.url, home_secret(home))
            client.load("policy", 1)
            assert policies.current("policy") == 1
            stream = agent.chat.completions.create(
                model="policy", messages=messages, tools=TOOLS, max_tokens=9, stream=True
            )
            deltas = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
            assert "".join(deltas) == "Hello there"  # the attempt stays with its version
        body = {"model": "policy", "messages": messages, "max_tokens": 9}
        answer = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=WAIT).json()
        assert answer["choices"][0]["message"]["content"] == "It is 4."
        client.close()
    spans = recorded(home)
    assert [span[attributes.POLICY_VERSION] for span in spans] == [0, 0, 1]
    assert spans[0][attributes.RESPONSE_TOKEN_IDS] == [hello, opening, call, closing, END]
    counts = [len(b64decode(span[attributes.RESPONSE_LOGPROBS])) / 4 for span in spans]
    assert counts == [5, 5, 2]
    bodies = [body for name, body in server.requests if name == "asample"]
    prompts = [body["prompt"]["chunks"][0]["tokens"] for body in bodies]
    asked_for = [prompt for prompt in prompts if len(prompt) > 1]  # others try a model
    assert [span[attributes.PROMPT_TOKEN_IDS] for span in spans] == asked_for
    assert server.keys - {""} == {"tml-test"}  # health needs none
    assert "tml-test" not in (home / "logs" / "tinker.log").read_text()


def test_a_conversation_continues_by_its_ids(
    server: TinkerServer, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    home, new_line = tmp_path / "home", tokenizer.token_to_id("Ċ")
    think, unthink = map(tokenizer.token_to_id, ("<think>", "</think>"))
    hello, again = map(tokenizer.token_to_id, ("Hello there", "again"))
    teach(server, new_line, think, again, unthink, hello, END)
    messages: Any = [{"role": "user", "content": "hi"}]
    arguments = on(server, "--continue-tokens")
    model = str(tmp_path / "model")
    with serving(home, "", model, *arguments) as served, attempt(served, home) as agent:
        for _ in range(2):
            answer = agent.chat.completions.create(model="policy", messages=messages, max_tokens=9)
            content = answer.choices[0].message.content
            messages += [{"role": "assistant", "content": content}]
            messages += [{"role": "user", "content": "more"}]
    first, second = recorded(home)
    sampled = [*first[attributes.PROMPT_TOKEN_IDS], *first[attributes.RESPONSE_TOKEN_IDS]]
    assert second[attributes.PROMPT_TOKEN_IDS][: len(sampled)] == sampled
    assert second[attributes.CONTINUED] == len(sampled)


def test_weights_that_the_server_lost_are_told_and_awaited(
    server: TinkerServer, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    path = train(server, tmp_path / "adapter", "one")
    policies = Policies(home)
    policies.register("policy", tmp_path / "model")
    policies.promote("policy", policies.add("policy", tmp_path / "adapter"))
    body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    with serving(home, "", *on(server)) as served:
        url = f"{served.url}/v1/chat/completions"
        assert httpx.post(url, json=body, timeout=WAIT).status_code == 200
        saved = server.checkpoints.pop(path)
        server.samplers.clear()
        lost = httpx.post(url, json=body, timeout=WAIT)
        assert lost.status_code == 503
        assert "does not have 'policy@1' any more" in lost.json()["error"]["message"]
        served.line("ltrain: the policy server lost weights or adapters")
        line = served.line("ltrain: The policy server at ")
        assert f"does not have the weights {path} any more" in line
        server.checkpoints[path] = saved
        until = time.monotonic() + WAIT
        while httpx.post(url, json=body, timeout=WAIT).status_code != 200:
            assert time.monotonic() < until


def client_process(home: Path) -> int:
    """Return the id of the process that speaks to the Tinker server."""
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            _, *arguments = each.read_bytes().decode(errors="replace").split("\0")
            if arguments[:3] == ["-P", "-m", PROGRAM] and str(home) in arguments[3]:
                return int(each.parent.name)
    raise AssertionError("the process does not run")


def test_a_client_that_dies_is_started_again(
    server: TinkerServer, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    home = tmp_path / "home"
    with serving(home, "", str(tmp_path / "model"), *on(server)) as served:
        url = f"{served.url}/v1/chat/completions"
        os.kill(client_process(home), signal.SIGKILL)
        served.line("ltrain: the Tinker client died by signal SIGKILL")
        served.line("ltrain: the Tinker client runs again with policy v0")
        assert httpx.post(url, json=body, timeout=WAIT).status_code == 200


def test_a_quota_is_in_the_log_and_in_the_health(
    server: TinkerServer, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    with serving(tmp_path / "home", "", str(tmp_path / "model"), *on(server)) as served:
        assert httpx.get(f"{served.url}/health").json()["reason"] == ""
        server.faults["asample"] = [429] * 5
        url = f"{served.url}/v1/chat/completions"
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(httpx.post, url, json=body, timeout=WAIT)
            until = time.monotonic() + WAIT
            while "quota" not in (health := httpx.get(f"{served.url}/health").json())["reason"]:
                assert time.monotonic() < until
                time.sleep(0.1)
            assert call.result().status_code == 200
        line = served.line("ltrain: calls wait: the Tinker server at ")
        assert "refuses calls for its quota" in line
        assert health["status"] == "ready"


def test_full_weights_are_refused(
    server: TinkerServer, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    home, policies = tmp_path / "home", Policies(tmp_path / "home")
    policies.register("policy", tmp_path / "model")
    write_model(tmp_path / "other", TEXTS, base_model="other")
    assert policies.add("policy", tmp_path / "other") == 1
    with serving(home, "", *on(server)) as served:
        client = GatewayClient(served.url, home_secret(home))
        with pytest.raises(GatewayRefused, match="A Tinker server samples its base model and the"):
            client.load("policy", 1)
        client.close()
    assert policies.current("policy") == 0


def test_what_keeps_it_from_starting_is_told_in_a_sentence(
    server: TinkerServer, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, model = tmp_path / "home", str(tmp_path / "model")
    port = ("--port", "0")
    named = refusal(home, "", *port, model, *on(server, "--base-model", "Qwen/Qwen3-8B"))
    assert "names another base model than train.tinker.base_model" in named
    assert "vLLM cannot load them. Set on = " in refusal(home, "", *port, model)
    away = refusal(home, "", *port, model, "--on", "tinker", "--base-url", "http://127.0.0.1:9")
    assert "error: No Tinker server answers at http://127.0.0.1:9" in away
    both = ("--on", "tinker", "--upstream", "http://127.0.0.1:9")
    assert "takes neither --upstream" in refusal(home, "", *port, *both, status=2)
    for key in ("", "sk-wrong"):
        monkeypatch.setenv("TINKER_API_KEY", key)
        sentence = refusal(home, "", *port, model, *on(server))
        assert "TINKER_API_KEY holds no key of a Tinker server" in sentence
        assert "sk-wrong" not in sentence
