"""Calls without token ids -> their tokens, or the reason why their text does not tell them.

The text of an answer does not determine the tokens that were sampled. A call is left out where the
trace shows that they were others: the server counted another number of tokens, or the rendered
answer has not the recorded text. Other differences remain: docs/samples.md has their size.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from ltrain_transforms.rendering.chat import ChatMessage, NotText, read_tools, to_chat
from ltrain_transforms.rendering.served_policy import ServedPolicy
from ltrain_transforms.rendering.template import TokenPair, load_tokenizer, render_answer
from ltrain_transforms.tables import CALLS, lacks_token_ids
from ltrain_transforms.traces import Fields, Message, parse_json, read_message, read_messages

RENDERED = "rendered"
"""The `token_source` of a call that was rendered, and `tokens` of a row with such a call."""

BIAS = {
    "bias": "the tokens of a text may be others than those that were sampled, so the gradient "
    "differs from that of recorded rows; the log-probabilities are computed before an update",
    "measured": "docs/performance.md, by `make bench-rendered`; of an update: its metrics "
    "rendered_k3, rendered_difference, rendered_left_out and rendered_surprise",
}
"""The statement of a dataset about its rendered rows."""

REASONS = {
    "other_model": "it has no token ids, and the model that it names is not the policy, so no "
    "version of the policy sampled it; name the model in served_as of [[policy]] if it is",
    "cut": "it ended at a limit of tokens, or may have ended at a stop sequence, so the policy may "
    "not have sampled the end that the chat template writes; and the server's count of tokens is "
    "missing, or another one than that of its text",
    "not_rendered": "the chat template refuses its messages, or does not render its answer after "
    "its prompt",
    "not_reversible": "the rendered answer has not its text, thinking or arguments as they were "
    "recorded: the chat template changes them",
    "other_tokens": "the server counted more or fewer tokens in its prompt or its answer than the "
    "chat template renders, so these are not the tokens that were sampled",
}
"""Why a call without token ids is not rendered."""

CUT = ("length", "max_tokens", "model_length", "incomplete")
"""Reasons with which an answer has no end."""
MASKS = (
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
    *("response_format", "tool_choice"),
)
"""Parameters by which a server samples from a part of the ids only, apart from `UNMASKED`."""
UNMASKED = (None, "auto", "none", "text", {"type": "text"}, {"type": "auto"})
STOPS = ("stop", "stop_sequences")
"""Parameters with which an answer may have ended at a text that it does not have."""

READ = (
    *("input", "output", "tools", "choice", "params", "finish_reason"),
    *("input_tokens", "output_tokens", "constrained"),
)
"""The columns of a call that is rendered, beside its tokens."""
KEY = ["execution_id", "call_id"]
TOKENS = (
    *("prompt_token_ids", "response_token_ids", "response_logprobs", "token_source"),
    "unrendered",
)


def render_calls(
    calls: pl.DataFrame, transitions: pl.DataFrame, served: Sequence[ServedPolicy]
) -> pl.DataFrame:
    """Return `calls` with the tokens of those that can be rendered, and a column `unrendered`.

    Args:
        calls: the columns `READ` of `CALLS`, and those of tokens.
        transitions: the trained calls; only they are rendered.
        served: the policies whose calls are rendered.

    Returns:
        the calls; `unrendered` is the reason of one that is not rendered, else null.
    """
    if not served:
        return calls.with_columns(unrendered=pl.lit(None, pl.String))
    policies = {policy.name: policy for policy in served}
    of_policies = transitions.filter(pl.col("policy").is_in(list(policies)))
    trained = calls.filter(lacks_token_ids()).join(
        of_policies.select(*KEY, "policy", "policy_version"), KEY
    )
    cells = [
        (*(call[name] for name in KEY), *_token_cells(call, policies[call["policy"]]))
        for call in trained.select(*KEY, *READ, "policy", "policy_version").iter_rows(named=True)
    ]
    schema = {name: CALLS.schema.get(name, pl.String()) for name in (*KEY, *TOKENS)}
    tokens = pl.DataFrame(cells, schema, orient="row")
    others = calls.join(tokens, KEY, "anti").with_columns(unrendered=pl.lit(None, pl.String))
    replaced = calls.drop(TOKENS, strict=False).join(tokens, KEY)
    return pl.concat([others, replaced.select(others.columns)])


def _token_cells(call: Mapping[str, Any], policy: ServedPolicy) -> tuple[Any, ...]:
    """Return the cells `TOKENS` of a call."""
    answers, choice = read_messages(call["output"]), call["choice"] or 0
    rendered = _render(call, answers, policy)
    if isinstance(rendered, str):
        return None, None, None, None, rendered
    prompt, response = rendered
    choices = [response if index == choice else [] for index in range(len(answers))]
    zeros = [[0.0] * len(each) for each in choices]
    return prompt, choices, zeros, RENDERED, None


def _render(
    call: Mapping[str, Any], answers: Sequence[Message], policy: ServedPolicy
) -> TokenPair | str:
    """Return the tokens of a call, or the reason why it is not rendered."""
    prompt = read_messages(call["input"])
    if not prompt or not answers or not answers[call["choice"] or 0].parts:
        return "no_tokens"
    if call["policy_version"] is None:
        return "other_model"
    if len(answers) > 1 and call["choice"] is None:
        return "several_choices"
    parameters = _parameters(call["params"])
    if not call["constrained"] and any(parameters.get(name) not in UNMASKED for name in MASKS):
        return "constrained"
    try:
        messages = to_chat(prompt)
        [answer] = to_chat([read_message({**answers[call["choice"] or 0].fields, **ANSWERED})])
    except NotText:
        return "multimodal"
    tokenizer = _open_tokenizer(policy.tokenizer, policy.chat_template)
    pair = render_answer(tokenizer, messages, answer, read_tools(call["tools"]))
    if pair is None:
        return "not_rendered"
    if call["input_tokens"] not in (None, len(pair[0])):
        return "other_tokens"
    counts = _possible_counts(parameters, call["finish_reason"])
    if counts is not None:
        pair = _without_end(pair, tokenizer.eos_token_id)
        if call["output_tokens"] not in (len(pair[1]) + end for end in counts):
            return "cut"
    elif call["output_tokens"] not in (None, len(pair[1])):
        return "other_tokens"
    return pair if _is_reversible(answer, pair, tokenizer) else "not_reversible"


ANSWERED = {"role": "assistant"}


@lru_cache(maxsize=8)
def _open_tokenizer(folder: Path, chat_template: str | None) -> Any:
    return load_tokenizer(folder, chat_template)


def _parameters(text: str | None) -> Fields:
    """Return the parameters of a request, those of its `extra_body` among them."""
    parsed = parse_json(text)
    parameters = parsed if isinstance(parsed, dict) else {}
    extra = parameters.get("extra_body")
    return {**parameters, **extra} if isinstance(extra, dict) else parameters


def _possible_counts(parameters: Fields, finish_reason: str | None) -> tuple[int, ...] | None:
    """Return how many tokens an answer may have after its text; None: its end, and no others.

    At a limit it has none. With stop sequences it has none, the end, or a stop sequence of a token.
    """
    if any(parameters.get(name) for name in STOPS):
        return (0, 1)
    return (0,) if (finish_reason or "").lower() in CUT else None


def _without_end(pair: TokenPair, eos: int | None) -> TokenPair:
    prompt, answer = pair
    return prompt, answer[:-1] if answer[-1] == eos else answer


def _is_reversible(answer: ChatMessage, pair: TokenPair, tokenizer: Any) -> bool:
    """Return whether the tokens of an answer have its text, as it was recorded."""
    text = tokenizer.decode(pair[1], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return all(part in text for part in _texts(answer))


def _texts(answer: ChatMessage) -> Iterator[str]:
    """Yield the texts that a rendered answer must have."""
    yield answer["content"]
    yield answer.get("reasoning_content", "")
    for request in answer.get("tool_calls", ()):
        yield request["function"]["name"]
        yield request["function"]["arguments"]
