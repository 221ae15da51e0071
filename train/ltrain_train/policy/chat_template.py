"""Whether a model's chat template shows the model the tools of a request.

A model whose template ignores the tools answers as if there were none, without an error.
"""

import json
import re
from pathlib import Path

FILES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja")
"""Files of templates in a model directory, besides the one in `tokenizer_config.json`."""

TOOLS = re.compile(r"\btools\b")
"""The variable that Transformers and vLLM give a template the tools in."""

NO_TOOLS = (
    "The chat template of {} renders no tools: the model does not see the tools that a request "
    "names. Set serve.chat_template in the recipe (`ltrain serve ... -- --chat-template FILE`), or "
    "use a model that was trained with tools."
)


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
        return Path(template).read_text()
    except OSError:
        return template


def _read_templates(model: Path) -> list[str]:
    texts = [file.read_text() for pattern in FILES for file in sorted(model.glob(pattern))]
    try:
        settings = json.loads((model / "tokenizer_config.json").read_text())
    except (OSError, ValueError):
        return texts
    own = settings.get("chat_template") if isinstance(settings, dict) else None
    return [*texts, json.dumps(own)] if own else texts
