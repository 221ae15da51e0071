"""`replace_fields` and `parse_and_replace` return the same values, whatever a server sends."""

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ltrain_instrument.tokens import parse_and_replace
from ltrain_train.gateway.apis.response_fields import replace_fields

NAMES = ("model", "token_ids", "prompt_token_ids", "logprobs")
REPLACEMENTS = {"token_ids": "null", "prompt_token_ids": "null", "logprobs": "null"}
keys = st.sampled_from(
    (*NAMES, "choices", "finish_reason", "text", "message", 'x"token_ids', 'a\\"model": "b')
)
texts = st.sampled_from(
    ("", "a", 'say "token_ids":[1]', '"model": "m"', ',"finish_reason":', "]", "\\", "é\ud83d")
)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    scalars | st.lists(st.integers(0, 2**17), max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
ids = st.none() | st.lists(st.integers(0, 2**17), max_size=4)
tokens = st.fixed_dictionaries({"token": texts, "logprob": st.floats(-99, 0)})
choices = st.fixed_dictionaries(
    {"index": st.integers(0, 3)},
    optional={
        "message": values,
        "token_ids": ids,
        "prompt_token_ids": ids,
        "logprobs": st.none() | st.fixed_dictionaries({"content": st.lists(tokens, max_size=3)}),
        "finish_reason": st.none() | texts,
    },
)
responses = st.fixed_dictionaries(
    {"model": texts},
    optional={"choices": st.lists(choices, max_size=3), "prompt_token_ids": ids, "usage": values},
)
separators = st.sampled_from(((",", ":"), (", ", ": "), (" , ", " : ")))
replacements = st.fixed_dictionaries(
    {}, optional={name: st.sampled_from(("null", '"policy"')) for name in NAMES}
)


def result_of(replace: Any, text: Any, fields: dict[str, str]) -> tuple[str, str] | str:
    try:
        payload, replaced = replace(text, fields)
    except ValueError:
        return "ValueError"
    return repr(payload), repr(json.loads(replaced))


def assert_same(text: str, fields: dict[str, str]) -> None:
    expected = result_of(parse_and_replace, text, fields)
    assert result_of(replace_fields, text.encode(), fields) == expected


@example({"model": "a", "choices": [None]}, (",", ":"), {}, True)
@given(responses | values, separators, replacements, st.booleans())
def test_it_returns_the_values_that_the_parser_returns(
    content: Any, between: tuple[str, str], fields: dict[str, str], ascii_only: bool
) -> None:
    text = json.dumps(content, separators=between, ensure_ascii=ascii_only)
    assert_same(text.encode(errors="replace").decode(), fields)


@given(responses, st.integers(0, 400), st.sampled_from(("", "]", '"', ",", "}", " ")))
@example({"model": "a"}, 0, "{")
def test_damaged_text_is_refused_alike(content: Any, at: int, inserted: str) -> None:
    text = json.dumps(content, separators=(",", ":"))
    assert_same(text[:at] + inserted, REPLACEMENTS)
    assert_same(text[:at] + inserted + text[at:], REPLACEMENTS)


def test_json_of_python_alone_is_accepted() -> None:
    assert_same(
        '{"model":"a","choices":[{"token_ids":[1],"logprobs":NaN,"index":0}]}', REPLACEMENTS
    )


def test_a_response_without_replacements_is_forwarded_as_it_is() -> None:
    body = b'{ "model": "a", "choices": [ ] }'
    assert replace_fields(body, {})[1] is body
