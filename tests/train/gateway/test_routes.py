"""Other models that agents call: forwarded to their own servers, traced, never trained."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from tests.fake_vllm import FakeVllm

from ltrain_train.gateway.routes import BadRoute, parse_routes
from ltrain_transforms.errors import BadRecipe
from ltrain_transforms.recipe import Recipe, Route, Serve, Train

OTHER = "gpt-5"


@pytest.fixture
def provider() -> Iterator[FakeVllm]:
    with FakeVllm() as fake:
        yield fake


class Refusing(ThreadingHTTPServer):
    """Answers every call with an error."""

    status = 500
    body = json.dumps({"error": {"message": "maximum context length is 8"}}).encode()


class _Handler(BaseHTTPRequestHandler):
    server: Refusing

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def refusing() -> Iterator[Refusing]:
    with Refusing(("127.0.0.1", 0), _Handler) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def routed(
    vllm: FakeVllm,
    provider: FakeVllm,
    refusing: Refusing,
    tmp_path: Path,
    load: Any,
    write_model: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Any]:
    monkeypatch.setenv("PROVIDER_KEY", "sk-secret")
    stage = load("stage").Stage(vllm.url, tmp_path / "home")
    stage.policies.register("policy", write_model(tmp_path / "model"))
    stage.routes = (
        Route(model=OTHER, url=f"{provider.url}/v1", key="PROVIDER_KEY", served_as="gpt-5-large"),
        Route(model="away", url="http://127.0.0.1:9/v1"),
        Route(model="refuses", url=f"http://127.0.0.1:{refusing.server_port}"),
    )
    with stage.running():
        yield stage


def test_a_call_of_another_model_goes_to_its_server_as_it_is(
    routed: Any, vllm: FakeVllm, provider: FakeVllm
) -> None:
    key = routed.key(sampling={"temperature": 0.6})
    options = {"model": OTHER, "temperature": 0.1, "seed": 3, "response_format": {"type": "text"}}
    response = routed.ask("go w3 w14", key=key, **options)
    assert response.json()["model"] == OTHER
    assert response.json()["choices"][0]["message"]["content"] == "w3 w14"
    [sent] = provider.requests
    messages = [{"role": "user", "content": "go w3 w14"}]
    assert sent == {**options, "model": "gpt-5-large", "messages": messages}
    assert provider.headers[-1]["authorization"] == "Bearer sk-secret"
    assert vllm.requests == []


def test_its_span_has_messages_and_usage_but_neither_policy_nor_tokens(routed: Any) -> None:
    routed.ask("go w3 w14", model=OTHER)
    (span,) = routed.spans()
    attributes = span["attributes"]
    assert (span["name"], attributes["gen_ai.provider.name"]) == ("chat gpt-5", "openai")
    assert attributes["ltrain.rollout.id"] == "abc"
    assert attributes["gen_ai.usage.output_tokens"] == 2
    assert json.loads(attributes["gen_ai.output.messages"])[0]["parts"][0]["content"] == "w3 w14"
    left_out = ("ltrain.policy", "ltrain.response", "ltrain.prompt")
    assert [name for name in attributes if name.startswith(left_out)] == []


@pytest.mark.parametrize("call", ["ask", "complete"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_agent_gets_the_servers_bytes(
    routed: Any, provider: FakeVllm, stream: bool, call: str
) -> None:
    response = getattr(routed, call)("go w3 w14", model=OTHER, stream=stream)
    path = "chat/completions" if call == "ask" else "completions"
    direct = httpx.post(f"{provider.url}/v1/{path}", json=provider.requests[-1])
    assert response.text == direct.text.replace("gpt-5-large", OTHER)
    assert routed.spans()[0]["attributes"]["ltrain.delivered"] is True


def test_a_response_reaches_the_server_as_a_chat(routed: Any, provider: FakeVllm) -> None:
    sent = {"model": OTHER, "input": "go w3 w14"}
    answer = routed.post("/v1/responses", sent).json()
    assert (answer["model"], answer["output"][0]["content"][0]["text"]) == (OTHER, "w3 w14")
    messages = [{"role": "user", "content": "go w3 w14"}]
    assert provider.requests == [{"model": "gpt-5-large", "messages": messages}]


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"choices": 5},
        {"choices": [{"message": 5}]},
        {"choices": [{"message": {"content": 5}}]},
        {"choices": [{"message": {"tool_calls": 5}}]},
        {"choices": [{"message": {"tool_calls": [5]}}]},
        {"choices": [{"logprobs": 5, "message": {"content": "w3"}}]},
        {"usage": 5},
    ],
)
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/responses", {"input": "w3"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "w3"}], "max_tokens": 9}),
    ],
)
def test_a_server_that_answers_garbage_is_named(
    routed: Any, refusing: Refusing, content: object, path: str, fields: dict[str, Any]
) -> None:
    refusing.status, refusing.body = 200, json.dumps(content).encode()
    answer = routed.post(path, {"model": "refuses", **fields})
    assert answer.status_code == 502
    assert "The server of model 'refuses' failed: ValueError" in answer.json()["error"]["message"]
    assert routed.spans()[-1]["status"][0] == 2


def test_its_calls_count_in_the_attempt(routed: Any) -> None:
    routed.ask("w3", model=OTHER)
    routed.ask("w3")
    counts = routed.client.close_attempt(routed.identity, routed.key())
    assert (counts.llm_calls, counts.spans, counts.failures) == (2, 2, 0)
    assert routed.ask("w3", model=OTHER).status_code == 403


def test_production_may_call_it_and_other_names_list_the_models(routed: Any) -> None:
    assert routed.ask("w3", identity=None, model=OTHER).status_code == 200
    unknown = routed.ask("w3", identity=None, model="gpt-6")
    assert unknown.status_code == 404
    assert "no model 'gpt-6'. Choose from: policy, gpt-5, away, refuses." in unknown.text
    models = routed.http.get("/v1/models").json()["data"]
    assert [model["id"] for model in models] == ["policy", "gpt-5", "away", "refuses"]


def test_a_server_that_does_not_answer_is_named(routed: Any) -> None:
    response = routed.ask("w3", model="away")
    assert response.status_code == 502
    message = response.json()["error"]["message"]
    assert message.startswith("The server of model 'away' failed: ClientConnectorError")
    assert message.endswith("Send the request again, or check the model's route.")
    (span,) = routed.spans()
    assert (span["attributes"]["error.type"], span["status"][0]) == ("upstream", 2)
    counts = routed.client.close_attempt(routed.identity, routed.key())
    assert (counts.failures, counts.spans) == (0, 1)


@pytest.mark.parametrize("status", [401, 404, 429, 500, 503])
def test_the_servers_errors_are_passed_on(routed: Any, refusing: Any, status: int) -> None:
    refusing.status = status
    response = routed.ask("w3", model="refuses")
    assert (response.status_code, response.content) == (status, refusing.body)
    assert routed.spans()[-1]["attributes"]["error.type"] == str(status)


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["gpt-5"], "--route gpt-5: url: "),
        (["=http://a"], "--route =http://a: model: "),
        (["gpt-5=ftp://a"], "url: String should match pattern"),
        (["{"], "Invalid JSON"),
        (['{"model": "a", "url": "http://a", "kee": "B"}'], "kee: Extra inputs"),
        (["policy=http://a"], "Two servers are named for model 'policy'"),
        (["a=http://a", "a=http://b"], "Two servers are named for model 'a'"),
        (['{"model": "a", "url": "http://a", "key": "NO_SUCH_KEY"}'], "Set NO_SUCH_KEY in the"),
    ],
)
def test_a_bad_route_is_refused(texts: list[str], says: str) -> None:
    with pytest.raises(BadRoute) as error:
        parse_routes(texts, ["policy"])
    assert says in str(error.value)


def test_the_routes_of_a_recipe_reach_ltrain_serve(tmp_path: Path) -> None:
    recipe = tmp_path / "ltrain.toml"
    start = 'policy = [{ name = "sql" }]\nreward = [{ name = "a", evaluation = "a" }]\n'
    route = '[[serve.route]]\nmodel = "gpt-5"\nurl = "https://api.openai.com/v1"\n'
    recipe.write_text(start + route)
    arguments = Recipe.load(recipe).serve.arguments(tmp_path, "float32", Train())
    text = arguments[arguments.index("--route") + 1]
    assert parse_routes([text], "sql") == Recipe.load(recipe).serve.route
    assert arguments.index("--route") < arguments.index("--")
    assert Recipe.load(recipe).serve.secrets == ()
    keyed = Serve(route=(Route(model="a", url="http://a", key="A_KEY"),))
    assert keyed.secrets == ("A_KEY",)
    recipe.write_text(start + route + route)
    with pytest.raises(BadRecipe, match="Two routes are of model 'gpt-5'"):
        Recipe.load(recipe)
    assert "--route" not in Serve().arguments(tmp_path, "float32", Train())
