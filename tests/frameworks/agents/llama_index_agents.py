"""LlamaIndex: an agent with tools and a retriever, one that streams, and a team with a handoff."""

import asyncio
import os
import sys
from typing import Any

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.agent.workflow import AgentStream, AgentWorkflow, FunctionAgent
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool, ToolOutput
from llama_index.llms.openai_like import OpenAILike
from openai import OpenAI


def model(**options: Any) -> OpenAILike:
    return OpenAILike(
        model="fake",
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        max_retries=2,
        additional_kwargs=options,
    )


class Embedding(BaseEmbedding):  # type: ignore[misc]
    def _get_text_embedding(self, text: str) -> list[float]:
        return OpenAI().embeddings.create(model="fake", input=[text]).data[0].embedding

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


async def weather(city: str) -> str:
    """Return the weather of a city."""
    await asyncio.sleep(0.3)
    return f"It is sunny in {city}."


def book(city: str) -> str:
    """Book a room."""
    raise PermissionError(f"no room in {city}")


def places() -> VectorStoreIndex:
    return VectorStoreIndex.from_documents(
        [Document(text="Bath is a town.")], embed_model=Embedding()
    )


async def search(query: str) -> str:
    """Search for places."""
    results = await places().as_retriever(similarity_top_k=1).aretrieve(query)
    return results[0].text if query != "hail" else "Nothing found."


async def mark_no_result(text: str) -> ToolOutput | None:
    """Return an error result if nothing was found."""
    if text != "Nothing found.":
        return None
    return ToolOutput(
        tool_name="search", content=text, raw_input={}, raw_output=text, is_error=True
    )


SEARCH = FunctionTool.from_defaults(async_fn=search, async_callback=mark_no_result)


def agent(name: str, prompt: str = "You know places.", **options: Any) -> FunctionAgent:
    return FunctionAgent(
        name=name,
        description="It knows places.",
        tools=[weather, book, SEARCH],
        system_prompt=prompt,
        **{"llm": model(), "streaming": False} | options,
    )


async def tools() -> None:
    plan = "<Two cities.> weather(city=Paris) + weather(city=Rome); !book(city=Bath)"
    more = "search(query=hail); search(query=Bath); Sunny."
    print(await agent("guide").run(f"How is it? [[{plan}; {more}]]"))


async def streamed() -> None:
    counting = model(stream_options={"include_usage": True})
    guide = agent("streaming_guide", llm=counting, streaming=True)
    running = guide.run("Say it. [[weather(city=Rome); One by one.]]")
    async for event in running.stream_events():
        if isinstance(event, AgentStream):
            print(event.delta, end="")
    print()
    await running


async def team() -> None:
    desk = agent("desk", "Ask. [[handoff(to_agent=forecaster, reason=sky); Done.]]")
    # it sees the desk's turn, too
    forecaster = agent("forecaster", "Look up. [[Done.; weather(city=Oslo); Snow.]]")
    print(await AgentWorkflow(agents=[desk, forecaster], root_agent="desk").run("Tomorrow?"))


async def alone() -> None:
    """A model and a query engine without an agent."""
    messages = [ChatMessage(role="user", content="Left? [[Left.]]")]
    print(model().chat(messages).message.content)
    print("".join(chunk.delta or "" for chunk in model().stream_chat(messages)))
    print(model().complete("Right? [[Right.]]").text)
    print("".join(chunk.delta or "" for chunk in model().stream_complete("Up? [[Up.]]")))
    print(places().as_query_engine(llm=model()).query("Well? [[All well.]]"))


async def main() -> None:
    modes = {"tools": tools, "streamed": streamed, "team": team, "alone": alone}
    for name in sys.argv[1:]:
        await modes[name]()


asyncio.run(main())
