"""Parsers of the texts of settings; each raises ValueError with a sentence."""

import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from ltrain_instrument.errors import BadSetting


def parse_integer(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ValueError("an integer is expected") from error


def parse_positive(text: str) -> int:
    number = parse_integer(text)
    if number < 1:
        raise ValueError("an integer of at least 1 is expected")
    return number


def parse_optional_integer(text: str) -> int | None:
    return parse_integer(text) if text else None


def parse_optional_path(text: str) -> Path | None:
    return Path(text) if text else None


def parse_providers(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    invalid = [name for name, equals, value in pairs if not (name.strip() and equals and value)]
    if invalid:
        raise BadSetting(
            f"'{invalid[0]}' in '{text}' is not a pair. Allowed: library=provider, several pairs "
            "separated by commas, e.g. openai=openinference,mcp=none."
        )
    return {name.strip(): value.strip() for name, _, value in pairs}


def parse_patterns(text: str) -> tuple[re.Pattern[str], ...]:
    return tuple(parse_pattern(line.strip()) for line in text.splitlines() if line.strip())


def parse_pattern(text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except (re.error, RecursionError) as error:
        raise BadSetting(f"'{text}' is not a valid regular expression: {error}.") from error
    if pattern.search(""):
        raise BadSetting(
            f"'{text}' matches the empty text, so it would match everywhere. "
            "Write a pattern that needs at least one character."
        )
    return pattern


def parse_base_urls(text: str) -> tuple[str, ...]:
    urls = parse_names(text)
    if not all(url.startswith(("http://", "https://")) for url in urls):
        raise ValueError("a base URL starts with http:// or https://")
    return urls


def parse_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


class JoinCalls(StrEnum):
    """How calls without a parent become conversations."""

    CONTENT = "content"
    PROCESS = "process"
    OFF = "off"


def parse_conversations(text: str) -> JoinCalls:
    if text not in set(JoinCalls):
        raise ValueError(f"{', '.join(JoinCalls)} is expected")
    return JoinCalls(text)


def limits(*names: str) -> Callable[[str], dict[str, int]]:
    """Return what reads `name=number` pairs of these names, separated by commas."""

    def read(text: str) -> dict[str, int]:
        pairs = [part.partition("=") for part in text.split(",") if part.strip()]
        for name, _, value in pairs:
            if name.strip() not in names or not value.strip().isdecimal():
                raise BadSetting(
                    f"'{name}={value}' in '{text}' is not a limit. Allowed: NAME=NUMBER, separated "
                    f"by commas, of {', '.join(names)}; e.g. {names[0]}=600,{names[1]}=4096."
                )
        return {name.strip(): int(value) for name, _, value in pairs}

    return read
