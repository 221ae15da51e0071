"""Prompts by token ids with chat templates of model families: continued, or plain with a reason."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import TemplateError
from tests.fake_vllm import FakeVllm
from tests.train.template_families import FAMILIES, Body, Family, Written
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from ltrain_instrument.identity import Identity
from ltrain_instrument.tokens import ModelResponse
from ltrain_train.gateway.continuation import Continuation, KnownTurns
from ltrain_train.gateway.serving.upstream import Upstream

hugging_face: Any = transformers  # its functions have no types
IDENTITY = Identity(run="r", task="t", wave=0, rollout="o", attempt=1, mode="train")
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
WORDS = ["the", "weather ", "is", " mild\n", "and  ", "cold", "é", "{}", "7"]
"""Parts of texts, which also have marks of the template."""


@cache
def tokenizer_of(family: Family) -> Any:
    """Return a byte-level tokenizer with some merges, whose marks are one token each."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["\n\n the weather is mild and cold system user\n"] * 9, trainer)
    marks = [AddedToken(each, special=True, rstrip=family.strips_right) for each in family.marks]
    tokenizer.add_special_tokens(marks)
    wrapped = hugging_face.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    wrapped.chat_template = family.template
    return wrapped


@dataclass
class Server:
    """A fake vLLM that renders chats as vLLM does, by the template of a family."""

    family: Family
    today: int = 0
    """The date that templates render."""

    def render(self, body: Body) -> tuple[int, Any]:
        """Return the status and the answer of the render route."""
        try:
            return 200, {"token_ids": self.ids(body)}
        except TemplateError as error:
            return 400, {"error": {"message": str(error)}}

    def ids(self, body: Body) -> list[int]:
        """Return the ids of a chat's prompt; the template may raise."""
        messages = [dict(each) for each in body["messages"]]
        for each in messages:
            if each.get("tool_calls"):
                each["tool_calls"] = [_parsed(call) for call in each["tool_calls"]]
        tokenizer, tools = tokenizer_of(self.family), body.get("tools")
        kwargs = {"tools": tools, "today": f"day {self.today}", "add_generation_prompt": True}
        text = tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)
        return list(tokenizer.encode(text, add_special_tokens=False))


def _parsed(call: Body) -> Body:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}


@dataclass
class Answer:
    """An answer of the policy, and the messages that the client then adds."""

    written: Written
    new: list[Body]
    returns_thought: bool


@st.composite
def answers(draw: st.DrawFn, family: Family) -> Answer:
    text = st.lists(st.sampled_from([*WORDS, *family.marks]), min_size=1, max_size=5)
    texts = text.map("".join).map(str.strip).map(lambda each: f"a{each}a")
    plain = st.lists(st.sampled_from(WORDS), max_size=3).map("".join).map(lambda each: f"b{each}b")
    count = draw(st.integers(0, family.max_calls))
    arguments = [json.dumps({"a": draw(st.integers(0, 9))}, separators=(",", ":"))] * count
    written = Written(
        thought=draw(plain),
        text="" if count else draw(plain),
        calls=[("f", each) for each in arguments],
    )
    new = [
        {"role": "tool", "tool_call_id": f"call{at:05}", "content": f"w{at}"} for at in range(count)
    ]
    roles = draw(st.sampled_from([["user"], ["user"], ["system", "user"], ["user", "user"]]))
    if not count or draw(st.integers(0, 3)) == 0:
        new += [{"role": role, "content": draw(texts)} for role in roles]
    return Answer(written, new, draw(st.booleans()))


@dataclass
class Chat:
    """The chat of a rollout, as its client sends it."""

    messages: list[Body]
    tools: bool
    body: Body = field(init=False)

    def __post_init__(self) -> None:
        self.body = {"model": "m", "messages": self.messages}
        self.body |= {"tools": TOOLS} if self.tools else {}

    def repeat(self, answer: Answer) -> None:
        """Add an answer as a client writes it, and the new messages."""
        calls = [
            {
                "id": f"call{at:05}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(json.loads(arguments))},
            }
            for at, (name, arguments) in enumerate(answer.written.calls)
        ]
        content = answer.written.text if not calls else None
        message: Body = {"role": "assistant", "content": content}
        message |= {"tool_calls": calls} if calls else {}
        message |= {"reasoning_content": answer.written.thought} if answer.returns_thought else {}
        self.messages += [message, *answer.new]


def respond(prompt: Sequence[int], sampled: Sequence[int], message: Body) -> ModelResponse:
    """Return vLLM's answer."""
    choice = {"index": 0, "message": message, "token_ids": [*sampled], "finish_reason": "stop"}
    response = ModelResponse()
    response.add_payload({"prompt_token_ids": [*prompt], "choices": [choice]})
    return response


@pytest.fixture(scope="module")
def vllm() -> Iterator[FakeVllm]:
    with FakeVllm() as fake:
        yield fake


@pytest.mark.parametrize("family", FAMILIES, ids=lambda each: each.name.partition(":")[0])
@given(data=st.data())
def test_a_prompt_continues_as_the_template_renders_it_or_is_plain_with_a_reason(
    vllm: FakeVllm, family: Family, data: st.DataObject
) -> None:
    server = Server(family)
    vllm.render = server.render  # type: ignore[method-assign]
    system = data.draw(st.sampled_from([[], ["Be brief."], ["Be brief. /no_think"]]))
    chat = Chat(
        [
            *({"role": "system", "content": each} for each in system),
            {"role": "user", "content": "q"},
        ],
        tools=data.draw(st.booleans()),
    )
    drawn = data.draw(st.lists(answers(family), min_size=1, max_size=3))

    async def run() -> None:
        upstream = Upstream(vllm.url, "m")
        try:
            await run_chat(upstream, server, chat, drawn)
        finally:
            await upstream.close()

    asyncio.run(run())


async def run_chat(upstream: Upstream, server: Server, chat: Chat, drawn: Sequence[Answer]) -> None:
    """Run a chat and check each of its prompts."""
    family, tokenizer, turns = server.family, tokenizer_of(server.family), KnownTurns()
    opening = Continuation(turns, IDENTITY, "policy", chat.body)
    prompt = server.ids(chat.body)
    for number, answer in enumerate(drawn):
        sampled = tokenizer.encode(family.write(answer.written), add_special_tokens=False)
        chat.repeat(answer)
        message = chat.messages[-1 - len(answer.new)]
        opening.end(respond(prompt, sampled, message))
        server.today = number
        try:
            plain = server.ids(chat.body)
        except TemplateError:
            plain = None  # the server refuses the call
        tail = family.tail(chat.body, answer.new)
        opening = Continuation(turns, IDENTITY, "policy", chat.body)
        await opening.find_prompt(upstream, "m")
        if tail is None or plain is None:
            assert (opening.ids, opening.reason, opening.fields) == (None, "template", {})
            if plain is None:
                break
            prompt = plain
            continue
        new = tokenizer.encode(tail, add_special_tokens=False)
        assert opening.reason is None
        assert opening.ids == [*prompt, *sampled, *new]
        assert plain[len(plain) - len(new) :] == new
        if plain[: len(prompt) + len(sampled)] == [*prompt, *sampled]:
            assert opening.ids == plain  # the template only appends
        prompt = opening.ids
