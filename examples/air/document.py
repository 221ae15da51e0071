"""A document of two pages, and the tool that reads it and fails for most words."""

import json

from opentelemetry import trace

ACCEPTED = range(64)
"""The words for which the tool returns a page: one in eight of the model's 512."""
PAGES = 2
"""Pages of a document; an answer counts only after all of them."""

tracer = trace.get_tracer("air")


class ReadFailed(Exception):
    """The tool has no page for a word."""


class Document:
    """A document that a tool reads page by page; after the last page it returns that page again."""

    def __init__(self) -> None:
        self.pages = 0
        self.reads = 0
        self.failures = 0

    def read(self, word: int) -> None:
        """Read the next page.

        Raises:
            ReadFailed: when the word is not one of `ACCEPTED`.
        """
        attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "read_page"}
        with tracer.start_as_current_span("execute_tool read_page", attributes=attributes) as span:
            span.set_attribute("gen_ai.tool.call.arguments", json.dumps({"word": word}))
            if word not in ACCEPTED:
                self.failures += 1
                raise ReadFailed(f"no page for the word {word}")
            self.reads += 1
            self.pages = min(self.pages + 1, PAGES)
            result = {"page": self.pages, "progress": self.pages / PAGES}
            span.set_attribute("gen_ai.tool.call.result", json.dumps(result))
