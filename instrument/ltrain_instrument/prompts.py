"""Prompts served by name: versions of a policy whose text an agent reads with `ltrain.prompt`.

* In an attempt of a runner, the runner has chosen the version of each prompt. It comes with the
  attempt, so every process of the attempt reads the same text.
* Elsewhere it is the current version in LTRAIN_HOME, read at each call.
* The span in which a prompt is read and spans that start later carry its version: in an attempt of
  a runner all of them, elsewhere those of the context that read it.
* A prompt is text. Its slots are filled by replacing text, and nothing in it is evaluated.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from opentelemetry import context, trace

from ltrain_instrument import attributes, settings
from ltrain_instrument.errors import BadPrompt, BadSetting, UnknownPrompt
from ltrain_instrument.files import path_component
from ltrain_instrument.identity import use_context

VARIABLE = "LTRAIN_PROMPTS"
"""The variable with the prompts of an attempt, a JSON object: by name `version` and `text`."""
PROMPT_FILE = "prompt.txt"
"""The file of a prompt in the directory of its version."""
SLOT = re.compile(r"\{([^\W\d]\w*)\}")
"""A name between braces; all other braces are text."""


class Prompt(str):
    """The text of a prompt, with its version."""

    version: int | None
    """None: the text is a default."""

    def __new__(cls, text: str, version: int | None = None) -> Self:
        prompt = super().__new__(cls, text)
        prompt.version = version
        return prompt

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the slots, each once, in their order."""
        return tuple(dict.fromkeys(SLOT.findall(self)))

    def format(self, *args: object, **values: object) -> str:
        """Return the text with each slot replaced by the value of its name.

        Braces in values stay as they are: a value cannot add a slot.

        Raises:
            BadPrompt: when the values have not exactly the names of the slots.
        """
        if args or set(self.slots) != values.keys():
            slots = ", ".join(f"{{{name}}}" for name in self.slots) or "no slot"
            names = ", ".join([*("a value without a name" for _ in args), *values]) or "none"
            raise BadPrompt(
                f"The prompt has {slots}, and the values are: {names}. Pass one value for each "
                "slot, as in `prompt.format(question=…)`."
            )
        return SLOT.sub(lambda slot: str(values[slot[1]]), self)


@dataclass(slots=True)
class ServedPrompts:
    """The prompts of one attempt, and which of them were read."""

    prompts: Mapping[str, Prompt]
    attributes: dict[str, int] = field(default_factory=dict)
    """The span attributes of those that were read."""


_KEY = context.create_key("ltrain-prompts")
_read: ContextVar[Mapping[str, int]] = ContextVar("ltrain-read-prompts", default={})  # noqa: B039
"""The span attributes of the prompts that were read outside attempts; it is never changed."""


def prompt(name: str, *, default: str | None = None) -> Prompt:
    """Return the text of a prompt: in an attempt the served version, else the current one.

    Args:
        name: the policy whose versions are prompts.
        default: the text if there is no such prompt.

    Raises:
        UnknownPrompt: when there is neither such a prompt nor a default.
        BadSetting: when LTRAIN_PROMPTS cannot be parsed.
    """
    served = _served()
    found = served.prompts.get(name) if served is not None else current_prompt(name)
    if found is None and default is None:
        raise UnknownPrompt(
            f"There is no prompt '{name}'. Add one with `ltrain policy add {name} FILE`, or pass a "
            f'text for the time without one: ltrain.prompt("{name}", default="…").'
        )
    if found is None:
        return Prompt(default or "")
    _record(served, name, found)
    return found


def _record(served: ServedPrompts | None, name: str, found: Prompt) -> None:
    if found.version is None:
        return
    version = {attributes.PROMPT + name: found.version}
    trace.get_current_span().set_attributes(version)
    if served is None:
        _read.set({**_read.get(), **version})
    else:
        served.attributes.update(version)


def prompt_attributes() -> Mapping[str, int]:
    """Return the span attributes of the prompts that were read in this attempt or context."""
    try:
        served = _served()
    except BadSetting:  # `prompt` raises it
        return {}
    return _read.get() if served is None else served.attributes


def _served() -> ServedPrompts | None:
    """Return the prompts of this attempt; None outside the attempts of a runner."""
    return _of_context() or _of_process(os.environ.get(VARIABLE, ""))


def _of_context() -> ServedPrompts | None:
    served = context.get_value(_KEY)
    return served if isinstance(served, ServedPrompts) else None


@lru_cache(maxsize=1)
def _of_process(text: str) -> ServedPrompts | None:
    return ServedPrompts(parse_prompts(text)) if text else None


def parse_prompts(text: str) -> dict[str, Prompt]:
    """Parse the value of LTRAIN_PROMPTS.

    Raises:
        BadSetting: when it is not a JSON object of prompts.
    """
    try:
        return read_prompts(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadSetting(
            f"{VARIABLE}='{text[:80]}' is no JSON object of prompts ({error}), e.g. "
            '{"greeting": {"version": 0, "text": "Hello"}}.'
        ) from error


def read_prompts(served: Mapping[str, Mapping[str, Any]]) -> dict[str, Prompt]:
    """Return the prompts that `prompt_fields` described."""
    return {name: Prompt(each["text"], each["version"]) for name, each in served.items()}


def prompt_fields(prompts: Mapping[str, Prompt]) -> dict[str, dict[str, str | int | None]]:
    """Return prompts as JSON can express them."""
    return {name: {"version": each.version, "text": str(each)} for name, each in prompts.items()}


def prompt_environment(prompts: Mapping[str, Prompt] | None = None) -> dict[str, str]:
    """Return the variable that passes prompts, by default those of this attempt, to a process."""
    if prompts is None:
        served = _of_context()
        if served is None:
            return {}
        prompts = served.prompts
    return {VARIABLE: json.dumps(prompt_fields(prompts))}


@contextmanager
def use_prompts(prompts: Mapping[str, Prompt]) -> Iterator[None]:
    """Serve these prompts to the attempt that runs in the block."""
    with use_context(context.set_value(_KEY, ServedPrompts(prompts))):
        yield


def current_prompt(name: str, home: Path | None = None) -> Prompt | None:
    """Return the current version of a prompt in a home, by default LTRAIN_HOME; None without one.

    Raises:
        UnknownPrompt: when the version cannot be read as text.
    """
    folder = (home or settings.HOME.read()) / "policies" / path_component(name)
    try:
        version = int((folder / "current").read_text())
    except (OSError, ValueError):  # the registration of version 0 may have been killed
        version = 0
    file = folder / f"v{version}" / PROMPT_FILE
    try:
        return Prompt(file.read_text(encoding="utf-8"), version)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UnknownPrompt(f"'{file}' cannot be read as UTF-8: {error}.") from error
