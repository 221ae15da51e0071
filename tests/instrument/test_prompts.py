"""Prompts by name: served versions, current versions, slots, and what spans carry of them."""

import json
import subprocess
import sys
from contextvars import ContextVar
from pathlib import Path

import pytest

import ltrain
from ltrain_instrument import prompts
from ltrain_instrument.errors import BadPrompt, BadSetting, UnknownPrompt
from ltrain_instrument.lifecycle.subprocesses import child_environment
from ltrain_instrument.prompts import Prompt, prompt_attributes, use_prompts


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LTRAIN_HOME", str(tmp_path))
    monkeypatch.delenv("LTRAIN_PROMPTS", raising=False)
    # spans of later tests of this process must not carry the versions that these tests read
    monkeypatch.setattr(prompts, "_read", ContextVar("of-this-test", default={}))  # noqa: B039
    return tmp_path


def write_version(home: Path, version: int, text: str) -> None:
    folder = home / "policies" / "greeting" / f"v{version}"
    folder.mkdir(parents=True)
    (folder / "prompt.txt").write_text(text)
    (folder.parent / "current").write_text(f"{version}\n")


def test_slots_are_filled_with_text_and_nothing_is_evaluated() -> None:
    prompt = Prompt('Answer {question} as {"a": {kind}} {0} {x.__class__} {}, {question}!')
    assert prompt.slots == ("question", "kind")
    filled = prompt.format(question="{kind} {0}", kind=1)
    assert filled == 'Answer {kind} {0} as {"a": 1} {0} {x.__class__} {}, {kind} {0}!'


@pytest.mark.parametrize("values", [{}, {"b": 1}, {"a": 1, "b": 1}])
def test_values_that_are_not_those_of_the_slots_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(BadPrompt, match=r"The prompt has \{a\}, and the values are"):
        Prompt("{a}").format(**values)
    with pytest.raises(BadPrompt, match="a value without a name"):
        Prompt("{a}").format(1, a=1)


def test_outside_attempts_the_current_version_is_read_at_each_call(home: Path) -> None:
    with pytest.raises(UnknownPrompt, match="ltrain policy add greeting FILE"):
        ltrain.prompt("greeting")
    assert ltrain.prompt("greeting", default="Hi.") == "Hi."
    assert ltrain.prompt("greeting", default="Hi.").version is None
    write_version(home, 0, "Hello.")
    write_version(home, 1, "Grüezi {name}.")
    found = ltrain.prompt("greeting", default="Hi.")
    assert (found.version, found.format(name="Ada")) == (1, "Grüezi Ada.")
    for name in ("../policies/greeting", "greeting/../greeting", "/etc", "nothing"):
        with pytest.raises(UnknownPrompt):
            ltrain.prompt(name)


def test_a_prompt_that_is_no_text_is_an_error(home: Path) -> None:
    write_version(home, 0, "")
    (home / "policies" / "greeting" / "v0" / "prompt.txt").write_bytes(b"\xff")
    with pytest.raises(UnknownPrompt, match="UTF-8"):
        ltrain.prompt("greeting", default="Hi.")


def test_an_attempt_reads_the_served_version_whatever_is_current(home: Path) -> None:
    write_version(home, 0, "Hello.")
    with use_prompts({"greeting": Prompt("Served.", 7)}):
        assert prompt_attributes() == {}
        assert ltrain.prompt("greeting") == "Served."
        assert prompt_attributes() == {"ltrain.prompt.greeting": 7}
        assert ltrain.prompt("other", default="Hi.") == "Hi."
        assert prompt_attributes() == {"ltrain.prompt.greeting": 7}
        served = json.loads(child_environment(None)["LTRAIN_PROMPTS"])
        assert served == {"greeting": {"version": 7, "text": "Served."}}
    with use_prompts({}), pytest.raises(UnknownPrompt):
        ltrain.prompt("greeting")


def test_a_damaged_variable_is_an_error_with_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("{", "[]", '{"a": 1}', '{"a": {"text": "x"}}'):
        monkeypatch.setenv(prompts.VARIABLE, text)
        with pytest.raises(BadSetting, match="LTRAIN_PROMPTS="):
            ltrain.prompt("greeting")
        assert prompt_attributes() == {}


def test_spans_after_a_prompt_was_read_carry_its_version(home: Path, tmp_path: Path) -> None:
    write_version(home, 4, "Hello.")
    code = """
import json, sys, ltrain
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from ltrain_instrument.identity import Identity
from ltrain_instrument.lifecycle.span_counter import SpanCounter
provider = TracerProvider()
provider.add_span_processor(SpanCounter(Identity()))
tracer = provider.get_tracer("t")
before = tracer.start_span("before")
ltrain.prompt("greeting")
after = tracer.start_span("after")
print(json.dumps([dict(span.attributes) for span in (before, after)]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [{}, {"ltrain.prompt.greeting": 4}]
