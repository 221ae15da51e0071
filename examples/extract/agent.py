"""A pydantic-ai agent that extracts an order, a nested model, from a short message.

The agent does not import ltrain. To run it alone, against any OpenAI-compatible server with
structured output:

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 opentelemetry-instrument \\
        python agent.py "Ada from Bath needs two lamps by tomorrow."
"""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

from openai import DefaultAsyncHttpxClient
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

MAX_TOKENS = 96
"""An order on one line has 45 tokens; with a line for each field it has 75."""


class Customer(BaseModel):
    name: str = Field(max_length=16)
    city: str = Field(max_length=16)


class Item(BaseModel):
    product: Literal["chair", "desk", "lamp", "shelf", "sofa"]
    count: int = Field(ge=1, le=99)


class Order(BaseModel):
    """An order of one product."""

    customer: Customer
    item: Item
    delivery: Literal["express", "standard", "pickup"]


WORKED = Order(
    customer=Customer(name="Lou", city="Rome"),
    item=Item(product="lamp", count=70),
    delivery="standard",
)
INSTRUCTIONS = f"Write the order of the message as JSON, such as {WORKED.model_dump_json()}"


class Endpoint(Protocol):
    """The address of the model."""

    @property
    def base_url(self) -> str: ...
    @property
    def api_key(self) -> str: ...
    @property
    def model(self) -> str: ...


@cache
def _connection() -> DefaultAsyncHttpxClient:
    # A client costs tens of milliseconds of TLS set-up; every rollout has a URL of its own.
    return DefaultAsyncHttpxClient()


async def solve(task: dict[str, Any], llm: Endpoint) -> dict[str, Any]:
    """Return the order of the task's message."""
    provider = OpenAIProvider(base_url=llm.base_url, api_key=llm.api_key, http_client=_connection())
    extractor = Agent(
        OpenAIChatModel(llm.model, provider=provider),
        name="extractor",
        instructions=INSTRUCTIONS,
        output_type=NativeOutput(Order),
        model_settings={"temperature": 0, "max_tokens": MAX_TOKENS},
    )
    done = await extractor.run(task["input"])
    order: dict[str, Any] = done.output.model_dump()
    return order


@dataclass(frozen=True, slots=True)
class EnvironmentEndpoint:
    """The endpoint that the OPENAI_* variables name."""

    base_url: str
    api_key: str
    model: str


def main(arguments: list[str]) -> None:
    """Extract the order of the message on the command line, else of LTRAIN_TASK; print JSON."""
    if not arguments and "LTRAIN_TASK" not in os.environ:
        sys.exit('usage: python agent.py "Ada from Bath needs two lamps by tomorrow."')
    message = " ".join(arguments) or json.loads(os.environ["LTRAIN_TASK"])["input"]
    endpoint = EnvironmentEndpoint(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        model=os.environ.get("OPENAI_MODEL", "extract"),
    )
    print(json.dumps(asyncio.run(solve({"input": message}, endpoint))))


if __name__ == "__main__":
    main(sys.argv[1:])
