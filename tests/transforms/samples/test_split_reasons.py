"""Split reasons: a real chat template that strips thinking, and histories that changed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jinja2
import polars as pl
import pytest
from tests.transforms.talk import Message, Talk, message
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

QWEN = """
{%- set last_user = namespace(index=0) -%}
{%- for each in messages -%}
  {%- if each.role == 'user' -%}{%- set last_user.index = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for each in messages -%}
  {%- if each.role == 'assistant' -%}
    {%- set content = each.content -%}
    {%- if loop.index0 < last_user.index and '</think>' in content -%}
      {%- set content = content.split('</think>')[-1].lstrip('\n') -%}
    {%- endif -%}
    {{- '<|im_start|>assistant\n' + content + '<|im_end|>\n' -}}
  {%- elif each.role == 'tool' -%}
    {{- '<|im_start|>user\n<tool_response>\n' + each.content + '\n</tool_response><|im_end|>\n' -}}
  {%- else -%}
    {{- '<|im_start|>' + each.role + '\n' + each.content + '<|im_end|>\n' -}}
  {%- endif -%}
{%- endfor -%}
{{- '<|im_start|>assistant\n' -}}
"""
"""Like Qwen3's: it omits thinking before the last question and includes later thinking."""

SPECIAL = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Return a byte-level BPE tokenizer with its own merges."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    text = ["the answer is forty two", "let me think about the question", "select from where"] * 9
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(text, trainer)
    return made


@dataclass
class Chat:
    """A client that sends its complete history each time, and a server that renders it."""

    tokenizer: Any
    talk: Talk = field(default_factory=Talk)
    history: list[Message] = field(default_factory=list)

    def hears(self, role: str, text: str) -> None:
        self.history.append({"role": role, "content": text})

    def answers(self, text: str, ids: Sequence[int] | None = None, **cells: Any) -> str:
        """Sample `text`, as `ids` if they are passed, and append it to the history."""
        prompt = jinja2.Environment().from_string(QWEN).render(messages=self.history)
        messages = [message(each["role"], each["content"]) for each in self.history]
        sampled = ids or self.tokenizer.encode(f"{text}<|im_end|>").ids
        call = self.talk.call(
            self.tokenizer.encode(prompt).ids,
            sampled,
            messages=messages,
            answer=message("assistant", text),
            **cells,
        )
        self.hears("assistant", text)
        return call

    def rows(self) -> Iterator[tuple[list[str], str, str | None, int | None]]:
        frame, drops = self.talk.samples()
        assert drops.is_empty()
        self.check(frame)
        columns = ("transition_ids", "begins", "differs_from", "differs_at")
        yield from frame.select(columns).iter_rows()

    def check(self, frame: pl.DataFrame) -> None:
        """Check that every call is trained with exactly the tokens that it was sampled with."""
        prompts = {call["call_id"]: call["prompt_token_ids"] for call in self.talk.calls}
        for row in frame.to_dicts():
            whole = [*row["prompt_ids"], *row["response_ids"]]
            for offset, call in zip(row["call_offsets"], row["transition_ids"], strict=True):
                assert whole[: len(row["prompt_ids"]) + offset] == prompts[call]

    def text(self, call: int, until: int) -> str:
        """Return the text of the beginning of a call's prompt."""
        ids = self.talk.calls[call]["prompt_token_ids"][:until]
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))


@pytest.fixture
def chat(tokenizer: Any) -> Chat:
    made = Chat(tokenizer)
    made.hears("system", "select from where")
    made.hears("user", "let me think")
    return made


def test_a_template_that_strips_thinking_causes_no_wrong_merge(chat: Chat) -> None:
    chat.answers("<think>\nabout the question\n</think>\n\nselect")
    chat.hears("tool", "forty two")
    chat.answers("<think>\nforty\n</think>\n\nthe answer is forty two")
    chat.hears("user", "the question")
    chat.answers("<think>\nlet me\n</think>\n\nforty")
    chat.hears("tool", "two")
    chat.answers("the answer")
    first, second = chat.rows()
    assert first == (["c0", "c1"], "first", None, None)
    assert second[:3] == (["c2", "c3"], "template", "c1")
    assert str(chat.text(2, second[3] or 0)).endswith(
        "let me think<|im_end|>\n<|im_start|>assistant\n"
    )


def test_thinking_that_the_client_omits_counts_as_template(chat: Chat) -> None:
    chat.answers("<think>\nabout\n</think>\n\nthe answer")
    chat.history[-1]["content"] = "the answer"
    chat.hears("user", "where")
    chat.answers("forty two")
    assert [row[1] for row in chat.rows()] == ["first", "template"]


def test_an_answer_in_other_ids_is_retokenised(chat: Chat) -> None:
    letters = [chat.tokenizer.encode(letter).ids[0] for letter in "the answer"]
    sampled = [*letters, chat.tokenizer.token_to_id("<|im_end|>")]
    assert sampled != chat.tokenizer.encode("the answer<|im_end|>").ids
    chat.answers("the answer", sampled)
    chat.hears("user", "where")
    chat.answers("forty two")
    _, second = chat.rows()
    assert second[:3] == (["c1"], "retokenised", "c0")
    assert second[3] == len(chat.talk.calls[0]["prompt_token_ids"])


def test_a_difference_in_rendered_text_is_not_retokenised(chat: Chat) -> None:
    chat.answers("select")
    chat.hears("user", "where")
    chat.answers("forty")
    chat.hears("user", "where")
    chat.answers("two")
    last = chat.talk.calls[-1]["prompt_token_ids"]
    last[3:3] = [7, 7]  # a date that the template put into the system's message, say
    assert [row[:2] for row in chat.rows()] == [(["c0", "c1"], "first"), (["c2"], "template")]


def test_a_compacted_and_an_edited_history_are_rewritten(chat: Chat) -> None:
    chat.answers("select")
    chat.hears("user", "where")
    chat.answers("forty")
    del chat.history[2:4]
    chat.hears("user", "the question")
    chat.answers("two")
    rows = list(chat.rows())
    assert [row[:3] for row in rows][1] == (["c2"], "rewritten", "c1")
    chat.hears("user", "the question")
    chat.history[1] = {"role": "user", "content": "the answer is forty two"}
    chat.answers("where")
    assert [row[1] for row in chat.rows()] == ["first", "rewritten", "rewritten"]


def test_continuing_an_earlier_point_is_a_branch(chat: Chat) -> None:
    chat.answers("select")
    point = list(chat.history)
    chat.hears("user", "where")
    chat.answers("forty")
    chat.history = [*point, {"role": "user", "content": "from"}]
    chat.answers("two")
    chat.history = point[:2]
    chat.answers("select from")
    assert [row[:2] for row in chat.rows()] == [
        (["c0", "c1"], "first"),
        (["c2"], "branch"),
        (["c3"], "branch"),
    ]


def test_a_sub_agent_is_another_conversation(chat: Chat) -> None:
    chat.answers("select")
    mine = list(chat.history)
    chat.history = [mine[0], {"role": "user", "content": "the answer is"}]
    chat.answers("forty two")
    chat.history = [*mine, {"role": "user", "content": "where"}]
    chat.answers("from")
    assert [row[:2] for row in chat.rows()] == [(["c0", "c2"], "first"), (["c1"], "conversation")]


def test_examples_in_a_prompt_are_not_history(chat: Chat) -> None:
    for role, text in (("assistant", "forty"), ("user", "where")):
        chat.hears(role, text)
    examples = chat.history[:-1]
    chat.answers("select")
    chat.history = [*examples, {"role": "user", "content": "from"}]
    chat.answers("two")
    assert [row[1] for row in chat.rows()] == ["first", "conversation"]


def test_a_summary_in_place_of_the_turns_is_rewritten(chat: Chat) -> None:
    chat.answers("select")
    chat.hears("user", "where")
    chat.answers("forty")
    summary = {"role": "user", "content": "the answer is forty two so far"}
    chat.history = [*chat.history[:2], summary]
    chat.answers("two")
    chat.hears("user", "from")
    chat.answers("forty two")
    assert [row[:2] for row in chat.rows()] == [
        (["c0", "c1"], "first"),
        (["c2", "c3"], "rewritten"),
    ]


def test_another_temperature_is_a_reason(chat: Chat) -> None:
    chat.answers("select")
    chat.hears("user", "where")
    chat.answers("forty", temperature=0.5)
    assert [row[1] for row in chat.rows()] == ["first", "temperature"]


@pytest.mark.parametrize(
    ("prompt", "reason", "differs_at"),
    [
        ((1, 2, 9), "unknown", 2),
        ((1, 2), "branch", 2),
        ((1, 2, 3, 8), "branch", 3),
        ((1, 2, 3, 4, 6), "unknown", 4),
        ((7, 7), "unknown", 0),
    ],
)
def test_without_messages_the_tokens_decide(
    prompt: tuple[int, ...], reason: str, differs_at: int
) -> None:
    talk = Talk()
    talk.call((1, 2), (3,))
    talk.call((1, 2, 3, 4), (5,))
    talk.call(prompt, (5,))
    row = talk.samples()[0].to_dicts()[1]
    assert (row["begins"], row["differs_from"], row["differs_at"]) == (reason, "c1", differs_at)


def test_tool_arguments_compare_equal_as_text_and_as_object(tokenizer: Any) -> None:
    """One dialect writes arguments as JSON, another as an object; the history is the same."""
    request = {"type": "tool_call", "id": "1", "name": "add"}
    prompt = [message("user", "add")]
    answer = message("assistant", "", {**request, "arguments": {"a": 1, "b": 2}})
    echoed = message("assistant", "", {**request, "arguments": '{"b": 2, "a": 1}'})
    result = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "1", "response": "3"}]}
    talk = Talk()
    talk.call((1, 2), (3, 4), messages=prompt, answer=answer)
    talk.call((1, 2, 9, 9, 5), (6,), messages=[*prompt, echoed, result], answer=message("user", ""))
    assert talk.samples()[0]["begins"].to_list() == ["first", "retokenised"]


ANSWER = tuple(range(10, 20))


@pytest.mark.parametrize(
    ("rendered", "reason"),
    [
        ((10, 11, *range(15, 20)), "template"),
        ((10, 11, 98, 99, *range(12, 20)), "template"),
        ((10, 11, 98, *range(13, 20)), "retokenised"),
        ((*range(10, 19), 99), "retokenised"),
    ],
    ids=["left out", "put in", "other ids", "another end"],
)
def test_text_removed_or_inserted_counts_as_template(
    rendered: tuple[int, ...], reason: str
) -> None:
    prompt, answer = [message("user", "add")], message("assistant", "three")
    talk = Talk()
    talk.call((1, 2), ANSWER, messages=prompt, answer=answer)
    more = [*prompt, answer, message("user", "sure?")]
    talk.call((1, 2, *rendered, 7, 7), (3,), messages=more, answer=answer)
    assert talk.samples()[0]["begins"].to_list() == ["first", reason]


@pytest.mark.parametrize("broken", ["", "[", "{}", "[]", "3", '["x"]'])
def test_unreadable_messages_count_as_missing(broken: str) -> None:
    talk = Talk()
    talk.call((1, 2), (3,), input=broken, output=broken)
    talk.call((1, 9), (3,), input=broken, output=broken)
    assert talk.samples()[0]["begins"].to_list() == ["first", "unknown"]


def test_deeply_nested_arguments_compare_as_text() -> None:
    request = {"type": "tool_call", "name": "add"}
    first, second = (
        [message("user", "add"), message("assistant", "", {**request, "arguments": "[" * levels})]
        for levels in (100_000, 100_001)
    )
    talk = Talk()
    talk.call((1, 2), (3,), messages=first, answer=message("assistant", "three"))
    talk.call((1, 9), (3,), messages=second, answer=message("assistant", "three"))
    assert talk.samples()[0]["begins"].to_list() == ["first", "conversation"]
