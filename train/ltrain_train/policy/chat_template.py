"""Whether a model has a chat template, and whether that shows the model the tools of a request.

vLLM refuses the chats of a model without a template. A model whose template ignores the tools
answers as if there were none, without an error.
"""

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

FILES = (
    *("chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja"),
    "tokenizer_config.json",
)
"""Files of templates in a model directory."""

TOOLS = re.compile(r"\btools\b")
"""The variable that Transformers and vLLM give a template the tools in."""

NO_TOOLS = (
    "The chat template of {} renders no tools: the model does not see the tools that a request "
    "names. Set serve.chat_template in the recipe (`ltrain serve ... -- --chat-template FILE`), or "
    "use a model that was trained with tools."
)

NO_TEMPLATE = (
    "The model of {} has no chat template: vLLM refuses every chat completion. Set "
    "serve.chat_template in the recipe (`ltrain serve ... -- --chat-template FILE`), or use a "
    "model that was trained on chats."
)


def chat_template_option(arguments: Sequence[str]) -> str | None:
    """Return the file or text of `--chat-template` among vLLM's arguments: the last one counts."""
    found = None
    for argument, following in pairwise((*arguments, "")):
        name, equals, own = argument.partition("=")
        if name.replace("_", "-") == "--chat-template":
            found = own if equals else following
    return found


def has_chat_template(model: Path, template: str | None = None) -> bool:
    """Return whether chats can be rendered.

    Args:
        model: directory in Hugging Face layout.
        template: what takes the place of the model's own template: a file, or the text itself.
    """
    return template is not None or bool(_read_templates(model))


def renders_tools(model: Path, template: str | None = None) -> bool:
    """Return whether a chat template reads the tools; True where the model has no template.

    Args:
        model: directory in Hugging Face layout.
        template: what takes the place of the model's own template: a file, or the text itself.
    """
    texts = [_read_template(template)] if template is not None else _read_templates(model)
    return not texts or any(map(TOOLS.search, texts))


def _read_template(template: str) -> str:
    try:
        return Path(template).read_text(errors="replace")
    except OSError:
        return template


def _read_templates(model: Path) -> list[str]:
    texts: list[str] = []
    for pattern in FILES:
        for file in sorted(model.glob(pattern)):
            text = file.read_text(errors="replace")
            texts += _strings(text) if file.suffix == ".json" else [text]
    return texts


def _strings(text: str) -> list[str]:
    """Return the templates of a JSON file: the value of `chat_template`, or the texts in it."""
    try:
        settings = json.loads(text)
    except ValueError:
        return []
    own = settings.get("chat_template") if isinstance(settings, dict) else None
    named = list(own.values()) if isinstance(own, dict) else own if isinstance(own, list) else [own]
    templates = [one.get("template") if isinstance(one, dict) else one for one in named]
    return [one for one in templates if isinstance(one, str)]
