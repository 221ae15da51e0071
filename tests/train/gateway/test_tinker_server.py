"""The policy server of a Tinker server: vLLM's routes, with the real SDK and a fake server."""

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.tinker_model import END, teach, write_model
from tests.tinker_server import TinkerServer
from tokenizers import Tokenizer

from ltrain_train.gateway.tinker_server.models import NoTinkerServer, TinkerModels
from ltrain_train.gateway.tinker_server.rendering import BadTemplate, Rendering
from ltrain_train.gateway.tinker_server.routes import PolicyRoutes
from ltrain_train.overlays import TINKER
from ltrain_train.policy import TinkerWeights

TINKER.add()
import tinker  # noqa: E402

CALL, BROKEN, NAMELESS = ' {"name": "add", "arguments": {"a": 1}} ', ' {"name": ', ' {"b": 2} '
TEXTS = ("Hello there", CALL, BROKEN, NAMELESS, "hm", "It is 4.", "ROLE", "more")
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
LIMIT = 256


@dataclass
class Served:
    """A policy server, and the Tinker server behind it."""

    tinker: TinkerServer
    tokenizer: Tokenizer
    http: TestClient
    models: TinkerModels
    folder: Path
    log: list[str] = field(default_factory=list)

    def id(self, text: str) -> int:
        number = self.tokenizer.token_to_id(text)
        assert number is not None, text
        return int(number)

    def says(self, *texts: str) -> list[int]:
        """Let the base model answer every chat with these tokens and an end; return their ids."""
        ids = [*map(self.id, texts), END]
        teach(self.tinker, self.id("Ċ"), *ids)
        return ids

    def post(self, path: str, **body: Any) -> Any:
        return self.http.post(path, json=body)

    def chat(self, **more: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": "hi"}]
        body: dict[str, Any] = {"model": "policy", "messages": messages, "return_token_ids": True}
        body |= {"logprobs": True, "max_tokens": 9}
        response = self.post("/v1/chat/completions", **{**body, **more})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def train(self, name: str, *, saves_state: bool = False) -> tuple[Path, str]:
        """Save an adapter at the server, and return the folder of its version and its path."""
        service = tinker.ServiceClient(base_url=self.tinker.url)
        run = service.create_lora_training_client("tiny", rank=4)
        state = run.save_state(name).result().path if saves_state else None
        path = run.save_weights_for_sampler(name).result().path
        folder = self.folder / name
        folder.mkdir()
        TinkerWeights(base_model="tiny", sampler=path, state=state).write(folder)
        return folder, path


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKER_TELEMETRY", "0")
        patch.setenv("TINKER_API_KEY", "tml-test")
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tokenizer]:
    folder = tmp_path_factory.mktemp("tinker") / "model"
    return folder, write_model(folder, TEXTS)


@pytest.fixture(scope="module")
def rendering(model: tuple[Path, Tokenizer]) -> Rendering:
    return Rendering(model[0], "tiny", tool_parser="hermes")


@contextmanager
def serving(tokenizer: Tokenizer, rendering: Rendering, folder: Path) -> Iterator[Served]:
    log: list[str] = []
    with TinkerServer() as server:
        models = TinkerModels(server.url, "tiny", log.append, folder / "tinker.runs")
        asyncio.run(models.start())
        routes = PolicyRoutes("policy", models, rendering, LIMIT)
        with TestClient(routes.app()) as client:
            yield Served(server, tokenizer, client, models, folder, log)
        models.close()


@pytest.fixture
def served(model: tuple[Path, Tokenizer], rendering: Rendering, tmp_path: Path) -> Iterator[Served]:
    with serving(model[1], rendering, tmp_path) as served:
        yield served


@pytest.fixture(scope="module")
def idle(model: tuple[Path, Tokenizer], rendering: Rendering) -> Iterator[Served]:
    """A server that no test teaches."""
    with serving(model[1], rendering, model[0].parent) as served:
        yield served


def test_a_chat_has_the_ids_and_log_probabilities_that_were_sampled(served: Served) -> None:
    ids = served.says("Hello there")
    answer = served.chat()
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello there", "refusal": None}
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
    assert choice["token_ids"] == ids
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert answer["prompt_token_ids"] == served.tokenizer.encode(prompt).ids
    [sampling] = [body for name, body in served.tinker.requests if name == "asample"][1:]
    assert sampling["prompt"]["chunks"][0]["tokens"] == answer["prompt_token_ids"]
    assert sampling["sampling_params"]["stop"] == [END]
    logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
    assert len(logprobs) == 2 and all(-1e-6 < value <= 0 for value in logprobs)
    assert answer["usage"]["completion_tokens"] == 2


def test_log_probabilities_are_those_of_the_server_to_the_last_bit(served: Served) -> None:
    answer = served.chat(seed=7, max_tokens=5, temperature=1.0)
    client = tinker.ServiceClient(base_url=served.tinker.url).create_sampling_client(
        base_model="tiny"
    )
    params = tinker.types.SamplingParams(max_tokens=5, seed=7, stop=[END])
    prompt = tinker.types.ModelInput.from_ints(answer["prompt_token_ids"])
    [sequence] = client.sample(prompt, 1, params).result().sequences
    [choice] = answer["choices"]
    assert choice["token_ids"] == sequence.tokens
    found = [token["logprob"] for token in choice["logprobs"]["content"]]
    assert found == sequence.logprobs


def test_an_answer_that_is_cut_ends_by_its_length(served: Served) -> None:
    ids = served.says("Hello there", "more")
    [choice] = served.chat(max_completion_tokens=1)["choices"]
    assert (choice["finish_reason"], choice["token_ids"]) == ("length", ids[:1])


def test_tool_calls_are_parsed(served: Served) -> None:
    ids = served.says("Hello there", "<tool_call>", CALL, "</tool_call>")
    [choice] = served.chat(tools=TOOLS)["choices"]
    message = choice["message"]
    assert (message["content"], choice["finish_reason"]) == ("Hello there", "tool_calls")
    [call] = message["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"a":1}'}
    assert call["type"] == "function" and call["id"].startswith("call_")
    assert choice["token_ids"] == ids


@pytest.mark.parametrize("more", [{}, {"tools": TOOLS, "tool_choice": "none"}])
def test_without_tools_a_call_is_text(served: Served, more: dict[str, Any]) -> None:
    served.says("<tool_call>", CALL, "</tool_call>")
    [choice] = served.chat(**more)["choices"]
    assert "tool_calls" not in choice["message"]
    assert choice["message"]["content"] == f"<tool_call>{CALL}</tool_call>"
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("broken", [BROKEN, NAMELESS])
def test_a_broken_call_stays_text(served: Served, broken: str) -> None:
    served.says("<tool_call>", broken, "</tool_call>")
    [choice] = served.chat(tools=TOOLS)["choices"]
    assert choice["message"]["content"] == f"<tool_call>{broken}</tool_call>"
    assert choice["finish_reason"] == "stop"


def test_one_call_at_most_where_the_client_wants_it(served: Served) -> None:
    served.says("<tool_call>", CALL, "</tool_call>")
    teach(served.tinker, served.id("</tool_call>"), served.id("ROLE"), served.id("<tool_call>"))
    more = {"tools": TOOLS, "max_tokens": 8}
    assert len(served.chat(**more)["choices"][0]["message"]["tool_calls"]) == 2
    [choice] = served.chat(**more, parallel_tool_calls=False)["choices"]
    assert len(choice["message"]["tool_calls"]) == 1


def test_thinking_is_apart_from_the_answer(served: Served) -> None:
    served.says("<think>", "hm", "</think>", "It is 4.")
    [choice] = served.chat()["choices"]
    assert choice["message"]["reasoning"] == "hm"
    assert choice["message"]["content"] == "It is 4."


@pytest.mark.parametrize(
    ("stop", "content", "count"), [("there", "Hello ", 1), (["x", "is 4"], "Hello thereIt ", 2)]
)
def test_an_answer_ends_at_a_text(served: Served, stop: Any, content: str, count: int) -> None:
    ids = served.says("Hello there", "It is 4.", "more")
    [choice] = served.chat(stop=stop)["choices"]
    assert choice["message"]["content"] == content
    assert choice["token_ids"] == ids[:count] and len(choice["logprobs"]["content"]) == count
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == (stop if isinstance(stop, str) else "is 4")


def test_an_answer_ends_at_an_id(served: Served) -> None:
    served.says("Hello there", "more")
    number = served.id("Hello there")
    [choice] = served.chat(stop_token_ids=[number])["choices"]
    assert (choice["token_ids"], choice["stop_reason"]) == ([number], number)


def events(response: Any) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_a_stream_has_the_same_answer(served: Served) -> None:
    ids = served.says("<think>", "hm", "</think>", "<tool_call>", CALL, "</tool_call>")
    body: dict[str, Any] = {"model": "policy", "tools": TOOLS}
    body |= {"messages": [{"role": "user", "content": "hi"}]}
    body |= {"return_token_ids": True, "logprobs": True, "max_tokens": 9, "stream": True}
    more = {"stream_options": {"include_usage": True}}
    response = served.post("/v1/chat/completions", **body, **more)
    assert response.headers["content-type"].startswith("text/event-stream")
    first, *chunks, usage = events(response)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(first["prompt_token_ids"]) > 10 and first["object"] == "chat.completion.chunk"
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [list(choice["delta"]) for choice in choices] == [["reasoning"], ["tool_calls"], []]
    assert choices[0]["token_ids"] == ids and len(choices[0]["logprobs"]["content"]) == len(ids)
    assert all("token_ids" not in choice for choice in choices[1:])
    assert choices[1]["delta"]["tool_calls"][0]["index"] == 0
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], len(ids))


def test_several_answers_have_an_index_each(served: Served) -> None:
    answer = served.chat(n=3, max_tokens=4)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len({tuple(choice["token_ids"]) for choice in answer["choices"]}) == 3
    body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}], "n": 2}
    _, *chunks = events(served.post("/v1/chat/completions", **body, stream=True, max_tokens=3))
    finished = [each for chunk in chunks for each in chunk["choices"] if each["finish_reason"]]
    assert [each["index"] for each in finished] == [0, 1]


@pytest.mark.parametrize("prompt", ["say\n", [7, 8, 9]])
def test_a_completion_has_its_text(served: Served, prompt: Any) -> None:
    ids = served.says("Hello there")
    if isinstance(prompt, list):
        teach(served.tinker, 9, *ids)
    body = {"model": "policy", "prompt": prompt, "logprobs": 0, "return_token_ids": True}
    answer = served.post("/v1/completions", **body, max_tokens=5).json()
    [choice] = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Hello there", "stop")
    assert choice["token_ids"] == ids and len(choice["logprobs"]["token_logprobs"]) == 2
    known = prompt if isinstance(prompt, list) else served.tokenizer.encode(prompt).ids
    assert choice["prompt_token_ids"] == known
    [event] = events(served.post("/v1/completions", **body, max_tokens=5, stream=True))
    assert event["choices"][0]["text"] == "Hello there"


def test_fields_that_were_not_requested_are_null(served: Served) -> None:
    served.says("Hello there")
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    answer = served.post("/v1/chat/completions", model="policy", messages=messages).json()
    [choice] = answer["choices"]
    assert choice["logprobs"] is choice["token_ids"] is answer["prompt_token_ids"] is None


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"response_format": {"type": "json_object"}}, 'train.constrained = "relaxed"'),
        ({"structured_outputs": {"regex": "a"}}, "cannot apply 'structured_outputs'"),
        ({"tool_choice": "required", "tools": TOOLS}, "cannot apply 'tool_choice'"),
        ({"min_p": 0.1}, "cannot apply 'min_p'"),
        ({"presence_penalty": 1}, "cannot apply 'presence_penalty'"),
        ({"logit_bias": {"1": 5}}, "cannot apply 'logit_bias'"),
        ({"top_logprobs": 2}, "cannot apply 'top_logprobs'"),
        ({"documents": [{}]}, "cannot apply 'documents'"),
        ({"unheard_of": 1}, "cannot apply 'unheard_of'"),
        ({"n": 0}, "n: Input should be greater than or equal to 1"),
        ({"temperature": "hot"}, "temperature: Input should be a valid number"),
        ({"messages": []}, "A chat needs messages"),
        ({"messages": [{"content": "no role"}]}, "The chat template refuses the messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "A Tinker server gets texts only",
        ),
        ({"max_tokens": LIMIT}, "maximum context length is 256 tokens"),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, "maximum context length"),
    ],
)
def test_what_a_tinker_server_cannot_do_is_refused(
    idle: Served, more: dict[str, Any], sentence: str
) -> None:
    body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}], **more}
    before = idle.tinker.names("asample")
    response = idle.post("/v1/chat/completions", **body)
    assert response.status_code == 400
    assert sentence in response.json()["error"]["message"]
    assert idle.tinker.names("asample") == before


@pytest.mark.parametrize(
    "more",
    [
        {"top_k": 0, "min_p": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0},
        {"response_format": {"type": "text"}, "tool_choice": "auto", "user": "me"},
        {"tools": [{"type": "function", "function": {"name": "add", "strict": True}}]},
        {"stop": None, "logit_bias": {}, "min_tokens": 0, "reasoning_effort": "low"},
    ],
)
def test_fields_without_effect_are_taken(served: Served, more: dict[str, Any]) -> None:
    served.says("Hello there")
    assert served.chat(**more)["choices"][0]["message"]["content"] == "Hello there"


@pytest.mark.parametrize("raw", [b"", b"[]", b"7", b"\xff"])
def test_a_body_that_is_no_request_is_refused(idle: Served, raw: bytes) -> None:
    response = idle.http.post("/v1/chat/completions", content=raw)
    assert response.status_code == 400
    assert "not a JSON object" in response.json()["error"]["message"]


def test_a_prompt_can_be_rendered_counted_and_handed_over(served: Served) -> None:
    body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
    rendered = served.post("/v1/chat/completions/render", **body).json()
    assert rendered["sampling_params"] == {"stop_token_ids": [], "structured_outputs": None}
    ids = rendered["token_ids"]
    counted = served.post("/tokenize", **body).json()
    assert counted == {"count": len(ids), "max_model_len": LIMIT, "tokens": ids}
    own = [*ids, served.id("more"), served.id("Ċ")]
    answer = served.chat(kv_transfer_params={"prompt_token_ids": own})
    assert answer["prompt_token_ids"] == own


def test_the_server_describes_itself(served: Served) -> None:
    assert served.http.get("/health").json() == {"waiting": ""}
    model = {"id": "policy", "object": "model", "max_model_len": LIMIT}
    assert served.http.get("/v1/models").json()["data"] == [model]
    assert served.http.get("/weight_info").json() == {"weight_version": "default"}
    served.post("/update_weight_version", new_version="policy/v0")
    assert served.http.get("/weight_info").json() == {"weight_version": "policy/v0"}


def test_full_weights_are_refused(idle: Served) -> None:
    refused = idle.post("/pause?mode=wait")
    assert refused.status_code == 409
    assert refused.text.startswith("A Tinker server samples its base model and the adapters")


def load(served: Served, name: str, folder: Path) -> Any:
    return served.post("/v1/load_lora_adapter", lora_name=name, lora_path=str(folder))


def test_an_adapter_is_loaded_by_the_record_of_its_version(served: Served) -> None:
    folder, path = served.train("one")
    ids = [served.id("It is 4."), END]
    teach_adapter(served, path, served.id("Ċ"), *ids)
    assert load(served, "policy@1", folder).status_code == 200
    assert served.tinker.samplers["sampler1"] == path
    served.says("Hello there")
    answer = served.chat()
    assert answer["choices"][0]["message"]["content"] == "Hello there"
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    adapted = served.post("/v1/chat/completions", model="policy@1", **body).json()
    assert adapted["model"] == "policy@1"
    assert adapted["choices"][0]["message"]["content"] == "It is 4."
    again = load(served, "policy@1", folder)
    assert again.status_code == 400 and "has already been loaded" in again.text
    unload = served.post("/v1/unload_lora_adapter", lora_name="policy@1")
    assert unload.status_code == 200
    assert served.post("/v1/unload_lora_adapter", lora_name="policy@1").status_code == 404
    gone = served.post("/v1/chat/completions", model="policy@1", **body)
    assert gone.status_code == 404
    assert gone.json()["error"]["message"] == "The model `policy@1` does not exist."


def teach_adapter(served: Served, path: str, *ids: int) -> None:
    table = served.tinker.checkpoints[path].table
    for last, following in pairwise(ids):
        table[last] = -40.0
        table[last, following] = 80.0


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        (None, "has no tinker.json with a path of its weights"),
        (TinkerWeights(base_model="tiny"), "has no tinker.json with a path of its weights"),
        (
            TinkerWeights(base_model="other", sampler="tinker://r/s/1"),
            "is an adapter of other, and the Tinker server samples tiny",
        ),
        (
            TinkerWeights(base_model="tiny", sampler="tinker://gone/sampler_weights/1"),
            "does not have the weights tinker://gone/sampler_weights/1 any more",
        ),
    ],
)
def test_an_adapter_that_the_server_lacks_is_refused(
    served: Served, weights: TinkerWeights | None, sentence: str, tmp_path: Path
) -> None:
    if weights is not None:
        weights.write(tmp_path)
    refused = load(served, "policy@1", tmp_path)
    assert refused.status_code == 409 and sentence in refused.text
    assert [each["id"] for each in served.http.get("/v1/models").json()["data"]] == ["policy"]


def test_a_lost_session_is_opened_again(served: Served) -> None:
    folder, path = served.train("one")
    load(served, "policy@1", folder)
    served.tinker.samplers.clear()
    served.chat()
    body = {"model": "policy@1", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    assert served.post("/v1/chat/completions", **body).status_code == 200
    assert list(served.tinker.samplers.values()) == [None, path]


def test_lost_weights_are_told(served: Served) -> None:
    folder, path = served.train("one")
    load(served, "policy@1", folder)
    served.tinker.samplers.clear()
    del served.tinker.checkpoints[path]
    body = {"model": "policy@1", "messages": [{"role": "user", "content": "hi"}]}
    lost = served.post("/v1/chat/completions", **body)
    assert lost.status_code == 404
    assert f"does not have the weights {path} any more" in lost.json()["error"]["message"]


def test_skyrl_samples_an_adapter_in_a_run_of_the_gateways_own(served: Served) -> None:
    served.tinker.samples_loaded = True
    folder, path = served.train("one", saves_state=True)
    served.tinker.lose_runs()
    assert load(served, "policy@1", folder).status_code == 200
    [own] = served.tinker.adapters
    assert str(list(served.tinker.samplers.values())[-1]).startswith(f"tinker://{own}/")
    served.tinker.lose_runs()  # in the middle of calls
    body = {"model": "policy@1", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(served.post, "/v1/chat/completions", **body) for _ in range(4)]
    assert [call.result().status_code for call in calls] == [200] * 4
    assert len(served.tinker.adapters) == 1 and own not in served.tinker.adapters
    assert path not in served.tinker.samplers.values()
    [own] = served.tinker.adapters
    runs = served.folder / "tinker.runs"
    assert json.loads(runs.read_text()) == [own]
    models = TinkerModels(served.tinker.url, "tiny", served.log.append, runs)  # after a kill
    models.close()
    assert served.tinker.adapters == {}
    assert served.chat(model="policy@1")  # it is loaded again
    served.post("/v1/unload_lora_adapter", lora_name="policy@1")
    served.models.close()
    assert served.tinker.adapters == {} and json.loads(runs.read_text()) == []


def test_a_server_without_places_is_told(served: Served) -> None:
    folder, _ = served.train("one", saves_state=True)
    served.tinker.limit = 1
    refused = load(served, "policy@1", folder)
    assert refused.status_code == 507 and "All places for adapters" in refused.text


def test_a_quota_is_waited_for_and_told(served: Served) -> None:
    served.says("Hello there")
    served.tinker.faults["asample"] = [429, 402]
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(served.chat)
        while not (waiting := served.models.waiting):
            assert not call.done()
            time.sleep(0.01)
        assert "refuses calls for its quota" in waiting
        assert "refuses calls for its quota" in served.http.get("/health").json()["waiting"]
        assert call.result()["choices"][0]["message"]["content"] == "Hello there"
    assert served.http.get("/health").json() == {"waiting": ""}
    [line] = served.log
    assert line.startswith("calls wait: the Tinker server at http://127.0.0.1:")


def test_a_request_that_the_server_refuses_is_the_agents_fault(served: Served) -> None:
    served.tinker.faults["asample"] = [422]
    body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
    refused = served.post("/v1/chat/completions", **body)
    assert refused.status_code == 400
    assert "The Tinker server refuses the request" in refused.json()["error"]["message"]


def test_a_key_that_is_refused_is_an_outage(served: Served) -> None:
    served.tinker.faults["asample"] = [401]
    body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
    refused = served.post("/v1/chat/completions", **body)
    assert refused.status_code == 503
    assert "refuses the key in TINKER_API_KEY" in refused.json()["error"]["message"]
    assert "tml-test" not in refused.text


def start(url: str, model: str = "tiny") -> None:
    asyncio.run(TinkerModels(url, model, print).start())


def test_a_server_that_is_away_is_told_at_once() -> None:
    with pytest.raises(NoTinkerServer, match=r"No Tinker server answers at http://127\.0\.0\.1:9"):
        start("http://127.0.0.1:9")


def test_a_base_model_that_the_server_lacks_is_told() -> None:
    with TinkerServer() as server, pytest.raises(NoTinkerServer) as caught:
        start(server.url, "Qwen/Qwen3-8B")
    assert str(caught.value).endswith("no base model 'Qwen/Qwen3-8B'. Choose from: tiny.")


@pytest.mark.parametrize(
    ("route", "status", "sentence"),
    [
        ("config", 404, r"SkyRL 0\.4\.0 takes tinker==0\.25\.0, skyrl-tx 0\.3\.0 takes tinker=="),
        ("asample", 422, "The Tinker server refuses the request"),
        ("create_session", 401, "refuses the key in TINKER_API_KEY"),
        ("healthz", 404, "it is not a Tinker server"),
    ],
)
def test_a_server_of_another_kind_or_version_is_told(
    route: str, status: int, sentence: str
) -> None:
    with TinkerServer() as server:
        server.faults[route] = [status]
        with pytest.raises(NoTinkerServer, match=sentence):
            start(server.url)


def test_an_unknown_parser_is_told(model: tuple[Path, Tokenizer]) -> None:
    with pytest.raises(BadTemplate, match=r"Unknown tool parser 'pythonic'. Choose from: deepseek"):
        Rendering(model[0], "tiny", tool_parser="pythonic")
