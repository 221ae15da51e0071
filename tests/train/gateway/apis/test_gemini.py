"""Gemini's API: requests in the form of Google's clients, and what they get."""

import json
from typing import Any

import pytest

from ltrain_instrument.allow import Allow
from ltrain_instrument.tokens import unchanged_request
from ltrain_train.gateway import GEMINI_RULES
from ltrain_train.gateway.apis import RequestLimits, find_api
from ltrain_train.gateway.apis.gemini.schema import plain_schema
from ltrain_train.gateway.apis.request_fields import Treatment

MODEL = "/v1beta/models/policy"
GENERATE, STREAM = f"{MODEL}:generateContent", f"{MODEL}:streamGenerateContent"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
UPPER = {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}}
WEATHER = {"name": "weather", "description": "the weather", "parameters": UPPER}
TIME = {"name": "time", "parametersJsonSchema": {"type": "object"}}
SDK_FIELDS = """
contents generationConfig systemInstruction safetySettings tools toolConfig labels
cachedContent serviceTier continuationToken store
"""
SDK_CONFIG = """
temperature topP topK candidateCount maxOutputTokens stopSequences responseLogprobs logprobs
presencePenalty frequencyPenalty seed responseMimeType responseSchema responseJsonSchema
responseModalities mediaResolution speechConfig thinkingConfig imageConfig
enableEnhancedCivicAnswers audioTranscriptionConfig
"""
"""The fields that the SDK google-genai 3.6.1 sends to Gemini's API."""
TOOLS = [{"functionDeclarations": [WEATHER, TIME]}, {"googleSearch": {}, "urlContext": {}}]


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": p} if isinstance(p, str) else p for p in parts]}


def model(*parts: Any) -> dict[str, Any]:
    return {**user(*parts), "role": "model"}


def call(name: str, **fields: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": {"a": 1}, **fields}}


def response(name: str, output: Any, **fields: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": name, "response": output, **fields}}


def post(
    stage: Any, body: dict[str, Any], path: str = GENERATE, allow: tuple[Allow, ...] = tuple(Allow)
) -> Any:
    """Post a request as Google's clients do, with the key in their header."""
    identity = stage.identity
    key = {"x-goog-api-key": stage.key(allow=allow)}
    path = f"/rollout/{identity.rollout}/attempt/{identity.attempt}{path}"
    return stage.http.post(path, json=body, headers=key)


def sent(stage: Any, vllm: Any, *contents: Any, **fields: Any) -> dict[str, Any]:
    """Return the chat completion that the server got."""
    answer = post(stage, {"contents": [*contents] or [user("w3")], **fields})
    assert answer.status_code == 200, answer.text
    return dict(vllm.requests[-1])


def events(answer: Any) -> list[dict[str, Any]]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [json.loads(each[6:]) for each in answer.text.split("\n\n") if each]


def test_content_is_a_chat_completion(stage: Any) -> None:
    answer = post(stage, {"contents": [user("go w3 w14")]}).json()
    assert answer["candidates"] == [
        {
            "index": 0,
            "content": {"role": "model", "parts": [{"text": "w3 w14"}]},
            "finishReason": "STOP",
        }
    ]
    assert answer["usageMetadata"] == {
        "promptTokenCount": 3,
        "cachedContentTokenCount": 1,
        "candidatesTokenCount": 2,
        "thoughtsTokenCount": 0,
        "totalTokenCount": 5,
    }
    assert answer["modelVersion"] == "policy"
    (span,) = stage.spans()
    assert span["name"] == "chat policy"
    assert span["attributes"]["ltrain.response_token_ids"] == "[3,14]"
    assert span["attributes"]["ltrain.rollout.id"] == "abc"


def test_contents_become_messages(stage: Any, vllm: Any) -> None:
    contents = [
        user("go", "on"),
        model({"text": "hm", "thought": True}, "y"),
        model("es", call("f"), call("f"), call("g", id="g1")),
        user(
            response("f", {"output": "1"}),
            response("g", {"error": "no"}, id="g1"),
            response("f", {"result": "2"}),
            "w3",
        ),
    ]
    body = sent(stage, vllm, *contents, systemInstruction=user("be", "brief"))

    def chat_call(id_: str, name: str) -> dict[str, Any]:
        function = {"name": name, "arguments": '{"a": 1}'}
        return {"id": id_, "type": "function", "function": function}

    assert body["messages"] == [
        {"role": "system", "content": "be\n\nbrief"},
        {"role": "user", "content": [{"type": "text", "text": t} for t in ("go", "on")]},
        {
            "role": "assistant",
            "reasoning": "hm",
            "content": "yes",
            "tool_calls": [
                chat_call("call_1", "f"),
                chat_call("call_2", "f"),
                chat_call("g1", "g"),
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "1"},
        {"role": "tool", "tool_call_id": "g1", "content": '{"error": "no"}'},
        {"role": "tool", "tool_call_id": "call_2", "content": "2"},
        {"role": "user", "content": "w3"},
    ]


def test_images_are_parts_that_training_must_allow(stage: Any, vllm: Any) -> None:
    image = {"inlineData": {"mimeType": "image/png", "data": "AA"}}
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    body = sent(stage, vllm, user("w3", image))
    assert body["messages"][0]["content"] == [{"type": "text", "text": "w3"}, part]
    answered = response("f", {"output": "x"}, parts=[image])
    assert sent(stage, vllm, user(answered))["messages"][0]["content"][1] == part
    refused = post(stage, {"contents": [user(image)]}, allow=())
    assert 'allow = ["multimodal"]' in refused.json()["error"]["message"]


def test_settings_become_those_of_a_chat(stage: Any, vllm: Any) -> None:
    config = {
        **{"temperature": 0.5, "topP": 0.9, "topK": 64.0, "maxOutputTokens": 9, "seed": 7},
        **{"stopSequences": ["end"], "presencePenalty": 0.1, "frequencyPenalty": 0.2},
        **{"candidateCount": 1, "responseModalities": ["TEXT"]},
        "thinkingConfig": {"thinkingLevel": "LOW", "includeThoughts": True},
    }
    safety = [{"category": "HARM_CATEGORY_HATE_SPEECH", "threshold": "BLOCK_NONE"}]
    body = sent(stage, vllm, generationConfig=config, safetySettings=safety)
    assert body == {
        **{"model": "policy", "messages": [{"role": "user", "content": "w3"}]},
        **{"temperature": 0.5, "top_p": 0.9, "top_k": 64, "max_tokens": 9, "seed": 7},
        **{"presence_penalty": 0.1, "frequency_penalty": 0.2, "stop": ["end"]},
        **{"reasoning_effort": "low"},
        **{"logprobs": True, "return_token_ids": True},
    }


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"responseMimeType": "text/plain"}, None),
        ({"responseMimeType": "application/json"}, None),
        ({"responseMimeType": "application/json", "responseSchema": UPPER}, CITY),
        ({"responseMimeType": "application/json", "responseJsonSchema": CITY}, CITY),
    ],
)
def test_structured_output(stage: Any, vllm: Any, config: Any, expected: Any) -> None:
    format_: Any = sent(stage, vllm, generationConfig=config).get("response_format")
    if expected is None:
        assert format_ == ({"type": "json_object"} if "json" in str(config) else None)
    else:
        assert format_["json_schema"]["schema"] == expected


@pytest.mark.parametrize(
    ("config", "choice", "names"),
    [
        (None, None, ["weather", "time"]),
        ({"mode": "AUTO"}, "auto", ["weather", "time"]),
        ({"mode": "NONE"}, "none", ["weather", "time"]),
        ({"mode": "ANY"}, "required", ["weather", "time"]),
        ({"mode": "VALIDATED", "allowedFunctionNames": ["time"]}, "auto", ["time"]),
        (
            {"mode": "ANY", "allowedFunctionNames": ["time"]},
            {"type": "function", "function": {"name": "time"}},
            ["time"],
        ),
    ],
)
def test_functions_and_the_choice_among_them(
    stage: Any, vllm: Any, config: Any, choice: Any, names: list[str]
) -> None:
    body = sent(stage, vllm, tools=TOOLS, toolConfig={"functionCallingConfig": config})
    functions = {each["function"]["name"]: each["function"] for each in body["tools"]}
    assert [*functions] == names
    assert body.get("tool_choice") == choice
    if "weather" in functions:
        assert functions["weather"] == {**WEATHER, "parameters": CITY}
    assert functions["time"]["parameters"] == {"type": "object"}
    omitted = json.loads(stage.spans()[-1]["attributes"]["ltrain.omitted"])
    assert omitted == {"tool googleSearch": 1, "tool urlContext": 1}


def test_parts_of_googles_servers_are_left_out_and_counted(stage: Any, vllm: Any) -> None:
    code = [{"executableCode": {"code": "1"}}, {"codeExecutionResult": {"output": "1"}}]
    turn = model(*code, {"text": "yes", "thoughtSignature": "c2tpcA=="})
    body = sent(stage, vllm, user("w3"), turn, user("w3"), tools=[{"codeExecution": {}}])
    assert body["messages"][1] == {"role": "assistant", "content": "yes"}
    assert "tools" not in body
    assert json.loads(stage.spans()[-1]["attributes"]["ltrain.omitted"]) == {
        "tool codeExecution": 1,
        "item executableCode": 1,
        "item codeExecutionResult": 1,
        "item thoughtSignature": 1,
    }


def test_a_schema_loses_what_json_schema_has_not() -> None:
    nested = {"type": "ARRAY", "items": {"type": "STRING", "nullable": True}, "minItems": "1"}
    schema = {"type": "OBJECT", "properties": {"type": nested}, "propertyOrdering": ["type"]}
    assert plain_schema({"anyOf": [schema], "nullable": False}) == {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "type": {
                        "type": "array",
                        "items": {"type": ["string", "null"]},
                        "minItems": "1",
                    }
                },
            }
        ]
    }


@pytest.mark.parametrize(
    "words", ["go w3 w14", "think w3", "call", "think call w3 w14", "think call", "cut w3", "go"]
)
@pytest.mark.parametrize("shown", [False, True])
def test_a_stream_has_the_parts_of_a_complete_response(stage: Any, words: str, shown: bool) -> None:
    config = {"thinkingConfig": {"includeThoughts": shown}}
    body = {"contents": [user(words)], "generationConfig": config}
    complete = post(stage, body).json()
    streamed = events(post(stage, body, f"{STREAM}?alt=sse"))
    parts: list[Any] = []
    for event in streamed:
        for part in event["candidates"][0]["content"]["parts"]:
            known = parts[-1] if parts and "text" in part and "text" in parts[-1] else None
            if known is not None and known.get("thought") == part.get("thought"):
                known["text"] += part["text"]
            else:
                parts.append(part)
    for part in parts:
        if "text" in part:
            part["text"] = part["text"].strip()
    (candidate,) = complete["candidates"]
    assert parts == candidate["content"]["parts"]
    assert any(part.get("thought") for part in parts) == (shown and "think" in words)
    last = streamed[-1]
    assert last["candidates"][0]["finishReason"] == candidate["finishReason"]
    assert candidate["finishReason"] == ("MAX_TOKENS" if "cut" in words else "STOP")
    assert (
        last["usageMetadata"]["candidatesTokenCount"]
        == (complete["usageMetadata"]["candidatesTokenCount"])
    )
    assert all("finishReason" not in each["candidates"][0] for each in streamed[:-1])


def test_a_turn_comes_back_as_one_message_with_its_hidden_thoughts(stage: Any, vllm: Any) -> None:
    answer = post(stage, {"contents": [user("think call")], "tools": TOOLS}).json()
    turn = answer["candidates"][0]["content"]
    names = [part["functionCall"]["args"]["city"] for part in turn["parts"]]
    assert names == ["Rome", "Oslo"]
    (message, *_) = sent(stage, vllm, turn, user("w3"))["messages"]
    assert message["reasoning"] == "let me see"
    assert [each["id"] for each in message["tool_calls"]] == ["call-rome", "call-oslo"]
    safe = turn["parts"][0]["thoughtSignature"].replace("+", "-").replace("/", "_").rstrip("=")
    turn["parts"][0]["thoughtSignature"] = safe  # as clients in Python write bytes
    assert sent(stage, vllm, turn, user("w3"))["messages"][0]["reasoning"] == "let me see"


def test_arguments_that_are_not_an_object_are_inside_one() -> None:
    api, name = find_api(GENERATE) or pytest.fail()
    parsed: Any = api.parse(json.dumps({"contents": [user("go")]}).encode(), RequestLimits(), name)
    converted = parsed.answer(unchanged_request("chat", parsed.body, "policy"))
    function = {"name": "f", "arguments": "no JSON"}
    message = {"role": "assistant", "tool_calls": [{"id": "c", "function": function}]}
    whole = {"id": "1", "choices": [{"message": message, "finish_reason": "tool_calls"}]}
    _, body = converted.complete(json.dumps(whole).encode())
    (part,) = json.loads(body)["candidates"][0]["content"]["parts"]
    assert part == {"functionCall": {"id": "c", "name": "f", "args": {"arguments": "no JSON"}}}


def test_tokens_of_a_prompt_are_counted(stage: Any, vllm: Any) -> None:
    body = {"contents": [user("go w3 w14")]}
    assert post(stage, body, f"{MODEL}:countTokens").json() == {"totalTokens": 3}
    inner = {"generateContentRequest": {"model": "models/policy", **body}}
    assert post(stage, inner, f"{MODEL}:countTokens").json() == {"totalTokens": 3}
    assert vllm.requests == []


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"contents": []}, "'contents' of the request cannot be []"),
        ({"contents": "w3"}, "'contents' of the request cannot be 'w3'"),
        ({"contents": [{"parts": [{"text": 7}]}]}, "cannot be 7"),
        ({"contents": [user({"fileData": {"fileUri": "u"}})]}, "has a part with fileData"),
        ({"contents": [user({"inlineData": {"mimeType": "application/pdf"}})]}, "inlineData"),
        ({"contents": [user({})]}, "has a part with nothing"),
        ({"tools": [{"teleport": {}}]}, "has 'teleport', which the gateway does not know"),
        ({"tools": [{"functionDeclarations": [{}]}]}, "has no 'tools.0.functionDeclarations"),
        ({"cachedContent": "c"}, "'cachedContent' is refused"),
        ({"generationConfig": {"candidateCount": 2}}, "'generationConfig.candidateCount' is"),
        ({"generationConfig": {"responseLogprobs": True}}, "no log-probabilities here"),
        ({"generationConfig": {"responseModalities": ["AUDIO"]}}, "answers with text"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "cannot be 'text/x.enum'"),
        ({"generationConfig": {"temperature": -1}}, "'temperature' of the request cannot be -1"),
        ({"generationConfig": {"maxOutputTokens": 0}}, "maxOutputTokens' of the request cannot"),
    ],
)
def test_what_a_chat_cannot_do_is_refused_in_googles_form(
    stage: Any, vllm: Any, fields: dict[str, Any], sentence: str
) -> None:
    refused = post(stage, {"contents": [user("w3")], **fields})
    error = refused.json()["error"]
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    assert sentence in error["message"]
    if "toolConfig" not in fields:
        assert vllm.requests == []


def test_the_mode_of_a_choice_is_checked(stage: Any) -> None:
    config = {"functionCallingConfig": {"mode": "SOME"}}
    refused = post(stage, {"contents": [user("w3")], "tools": TOOLS, "toolConfig": config})
    assert "cannot be 'SOME'. Choose from: AUTO" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"contents": [{"role": "user", "parts": [{"text": ""}] * 8192}]},
        {"contents": [user("w3")], "systemInstruction": {"parts": [{"text": ""}] * 8192}},
        {"contents": [user("w3")], "tools": [{"functionDeclarations": [TIME] * 8192}]},
        {"contents": [user(response("f", {}, parts=[{"text": ""}] * 8192))]},
    ],
)
def test_parts_and_functions_count_as_items(stage: Any, fields: dict[str, Any]) -> None:
    refused = post(stage, fields)
    assert refused.status_code == 413
    assert "at most 8,192 messages, parts, tools" in refused.json()["error"]["message"]


@pytest.mark.parametrize("path", [GENERATE, f"{MODEL}:countTokens"])
def test_errors_have_googles_form(stage: Any, path: str) -> None:
    body = {"contents": [user("w3")]}
    refused = stage.http.post(f"/rollout/abc/attempt/1{path}", json=body)
    assert refused.status_code == 401
    assert refused.json()["error"]["status"] == "UNAUTHENTICATED"
    other = path.replace("policy", "gpt%2F6")
    unknown = stage.post(other, body, identity=None)
    assert (unknown.status_code, unknown.json()["error"]["status"]) == (404, "NOT_FOUND")
    assert "gpt/6" in unknown.json()["error"]["message"]


def test_a_failed_stream_has_an_error(stage: Any) -> None:
    *_, last = events(post(stage, {"contents": [user("vanish w3 w14")]}, f"{STREAM}?alt=sse"))
    assert (last["error"]["code"], last["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert "fails on this request" in last["error"]["message"]


def test_an_unknown_route_names_the_paths(stage: Any) -> None:
    missing = stage.http.post(f"{MODEL}:embedContent", json={}).json()["error"]
    assert missing["status"] == "NOT_FOUND"
    assert "/v1beta/models/MODEL:generateContent" in missing["message"]


def test_production_is_answered_on_the_paths_of_both_versions(stage: Any) -> None:
    for path in (GENERATE, GENERATE.replace("v1beta", "v1")):
        answer = stage.post(path, {"contents": [user("w3")]}, identity=None)
        assert answer.json()["candidates"][0]["content"]["parts"] == [{"text": "w3"}]
    assert stage.spans()[0]["attributes"]["ltrain.mode"] == "prod"


def test_each_field_has_the_treatment_that_is_declared(stage: Any) -> None:
    for rule in GEMINI_RULES:
        assert rule.everywhere == (rule.treatment is Treatment.REFUSED)
    names = [name for rule in GEMINI_RULES for name in rule.fields]
    assert len(names) == len(set(names))
    sent = {*SDK_FIELDS.split(), *(f"generationConfig.{each}" for each in SDK_CONFIG.split())}
    assert sent - {*names} == {"tools"}


def test_a_setting_that_is_not_known_is_refused_in_training(stage: Any, vllm: Any) -> None:
    config = {"responseFormat": [{"text": {"mimeType": "application/json"}}]}
    refused = post(stage, {"contents": [user("w3")], "generationConfig": config}, allow=())
    assert "'generationConfig.responseFormat'" in refused.json()["error"]["message"]
    assert vllm.requests == []
