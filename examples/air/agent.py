"""An agent that reads a document with a tool that fails for most words, then answers.

The model answers one word a turn. A word of `ANSWERS` ends the run; any other word goes to the
tool, which reads the next page.

The agent does not import ltrain. To run it alone, against any OpenAI-compatible server:

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 opentelemetry-instrument python agent.py w7 w8 w9
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from document import PAGES, Document, ReadFailed
from openai import OpenAI

ANSWERS = range(320, 512)
"""The words that end the run."""
MAX_TURNS = 8
"""Words of the model before the agent ends without an answer."""
PAGE_WORDS = range(300, 301 + PAGES)
"""The last word of a prompt: how many pages the agent has."""


class Endpoint(Protocol):
    """The address of the model."""

    @property
    def base_url(self) -> str: ...
    @property
    def api_key(self) -> str: ...
    @property
    def model(self) -> str: ...


@cache
def _client() -> OpenAI:
    # A client costs tens of milliseconds of TLS set-up; every rollout has a URL of its own.
    return OpenAI(base_url="http://127.0.0.1", api_key="-", max_retries=0)


def ask(client: OpenAI, model: str, prompt: str) -> int:
    """Return the number of the model's next word; -1 for a token that is not a word."""
    response = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": prompt}], max_tokens=1
    )
    text = (response.choices[0].message.content or "").strip()
    return int(text[1:]) if text.startswith("w") and text[1:].isdigit() else -1


def solve(task: Mapping[str, Any], llm: Endpoint) -> dict[str, Any]:
    """Read and answer `task["input"]`; return the answer and what the agent read."""
    client = _client().with_options(base_url=llm.base_url, api_key=llm.api_key)
    document, answer = Document(), None
    for _ in range(MAX_TURNS):
        word = ask(client, llm.model, f"{task['input']} w{PAGE_WORDS[document.pages]}")
        if word in ANSWERS:
            answer = word
            break
        try:
            document.read(word)
        except ReadFailed:
            continue
    return {
        "answer": answer,
        "pages": document.pages,
        "reads": document.reads,
        "failures": document.failures,
    }


@dataclass(frozen=True, slots=True)
class EnvironmentEndpoint:
    """The endpoint that the OPENAI_* variables name."""

    base_url: str
    api_key: str
    model: str


def main(arguments: list[str]) -> None:
    """Answer the words on the command line, else the task in LTRAIN_TASK, and print JSON."""
    if not arguments and "LTRAIN_TASK" not in os.environ:
        sys.exit("usage: python agent.py w7 w8 w9")
    task = {"input": " ".join(arguments)} if arguments else json.loads(os.environ["LTRAIN_TASK"])
    endpoint = EnvironmentEndpoint(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        model=os.environ.get("OPENAI_MODEL", "air"),
    )
    print(json.dumps(solve(task, endpoint)))


if __name__ == "__main__":
    main(sys.argv[1:])
