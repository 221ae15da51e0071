"""Whether a model has a chat template, and whether the template renders tools."""

import json
from pathlib import Path

import pytest

from ltrain_train.policy import chat_template_option, has_chat_template, renders_tools

PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"
WITH_TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}" + PLAIN


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("chat_template.jinja", PLAIN, False),
        ("chat_template.jinja", WITH_TOOLS, True),
        ("tokenizer_config.json", json.dumps({"chat_template": PLAIN}), False),
        ("tokenizer_config.json", json.dumps({"chat_template": WITH_TOOLS}), True),
        (
            "tokenizer_config.json",
            json.dumps({"chat_template": [{"name": "tool_use", "template": WITH_TOOLS}]}),
            True,
        ),
        (
            "tokenizer_config.json",
            json.dumps({"chat_template": PLAIN + "{%\ntools\n%}"}),
            True,
        ),
        ("chat_template.json", json.dumps({"chat_template": {"default": WITH_TOOLS}}), True),
        ("tokenizer_config.json", "not JSON", True),
        ("tokenizer_config.json", "[]", True),
        ("config.json", "{}", True),
    ],
)
def test_a_models_template_renders_tools_if_it_reads_them(
    tmp_path: Path, file: str, content: str, expected: bool
) -> None:
    (tmp_path / file).write_text(content)
    assert renders_tools(tmp_path) is expected


def test_a_model_without_a_template_renders_no_chats(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 8}))
    assert not has_chat_template(tmp_path)
    assert has_chat_template(tmp_path, PLAIN)
    (tmp_path / "chat_template.jinja").write_text(PLAIN)
    assert has_chat_template(tmp_path)


def test_a_template_that_is_not_utf_8_is_read(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff {{ messages }}")
    assert not renders_tools(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "template"),
    [
        ((), None),
        (("--chat-template", "a"), "a"),
        (("--chat-template=a", "--seed", "7", "--chat_template", "b"), "b"),
    ],
)
def test_the_last_template_among_vllms_arguments_counts(
    arguments: tuple[str, ...], template: str | None
) -> None:
    assert chat_template_option(arguments) == template


def test_a_template_of_tools_beside_the_default_one_counts(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(PLAIN)
    more = tmp_path / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text(WITH_TOOLS)
    assert renders_tools(tmp_path)


def test_another_template_takes_the_place_of_the_models_own(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(WITH_TOOLS)
    other = tmp_path / "other.jinja"
    other.write_text(PLAIN)
    assert not renders_tools(tmp_path, str(other))
    assert not renders_tools(tmp_path, PLAIN)
    assert renders_tools(tmp_path, WITH_TOOLS * 100)
