"""Agents of many frameworks that ask for an order, most of them by structured output.

A task names the function that runs. Each is written as its framework shows it, and imports nothing
of ltrain.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Literal, Protocol

from pydantic import BaseModel

QUESTION = "We need two pens."
MAX_TOKENS = 64


class Order(BaseModel):
    """An order."""

    item: Literal["pen", "book", "lamp"]
    count: int


class Endpoint(Protocol):
    """The address of the model."""

    @property
    def base_url(self) -> str: ...
    @property
    def api_key(self) -> str: ...
    @property
    def model(self) -> str: ...


def solve(task: dict[str, Any], llm: Endpoint) -> dict[str, Any]:
    """Run the function that the task names; an answer that it cannot parse is a result too."""
    way: Callable[[Endpoint], Any] = globals()[task["input"]]
    try:
        return {"answer": str(way(llm))}
    except Exception as error:
        print(f"{task['input']}: {type(error).__name__}: {error}"[:500], flush=True)
        return {"failed": type(error).__name__}


def pydantic_ai_default(llm: Endpoint, output: Any = Order) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=llm.base_url, api_key=llm.api_key)
    agent = Agent(OpenAIChatModel(llm.model, provider=provider), output_type=output)
    return agent.run_sync(QUESTION, model_settings={"max_tokens": MAX_TOKENS}).output


def pydantic_ai_native(llm: Endpoint) -> Any:
    from pydantic_ai import NativeOutput

    return pydantic_ai_default(llm, NativeOutput(Order))


def pydantic_ai_prompted(llm: Endpoint) -> Any:
    from pydantic_ai import PromptedOutput

    return pydantic_ai_default(llm, PromptedOutput(Order))


def smolagents_tools(llm: Endpoint, kind: str = "ToolCallingAgent", **options: Any) -> Any:
    import smolagents

    model = smolagents.OpenAIServerModel(
        llm.model, api_base=llm.base_url, api_key=llm.api_key, max_tokens=MAX_TOKENS
    )
    agent = getattr(smolagents, kind)
    return agent([], model, max_steps=1, verbosity_level=0, **options).run(QUESTION)


def smolagents_code(llm: Endpoint) -> Any:
    return smolagents_tools(llm, "CodeAgent")


def smolagents_structured_code(llm: Endpoint) -> Any:
    return smolagents_tools(llm, "CodeAgent", use_structured_outputs_internally=True)


def openai_agents_output_type(llm: Endpoint) -> Any:
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=llm.base_url, api_key=llm.api_key)
    agent = Agent(
        "clerk",
        model=OpenAIChatCompletionsModel(llm.model, client),
        model_settings=ModelSettings(max_tokens=MAX_TOKENS),
        output_type=Order,
    )
    return Runner.run_sync(agent, QUESTION).final_output


def langchain_chat(llm: Endpoint) -> Any:
    from langchain_openai import ChatOpenAI

    options: dict[str, Any] = {"api_key": llm.api_key, "max_tokens": MAX_TOKENS}
    return ChatOpenAI(model=llm.model, base_url=llm.base_url, **options)


def langchain_json_schema(llm: Endpoint) -> Any:
    return langchain_chat(llm).with_structured_output(Order).invoke(QUESTION)


def langchain_function_calling(llm: Endpoint) -> Any:
    chat = langchain_chat(llm)
    return chat.with_structured_output(Order, method="function_calling").invoke(QUESTION)


def langchain_create_agent(llm: Endpoint) -> Any:
    from langchain.agents import create_agent

    agent: Any = create_agent(langchain_chat(llm), response_format=Order)
    return agent.invoke({"messages": [("user", QUESTION)]})["structured_response"]


def langgraph_node(llm: Endpoint) -> Any:
    from langgraph.graph import START, MessagesState, StateGraph

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [langchain_chat(llm).invoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")
    compiled: Any = graph.compile()
    return compiled.invoke({"messages": [("user", QUESTION)]})["messages"][-1].content


def openai_parse(llm: Endpoint) -> Any:
    from openai import OpenAI

    client = OpenAI(base_url=llm.base_url, api_key=llm.api_key)
    answer = client.chat.completions.parse(
        model=llm.model,
        messages=[{"role": "user", "content": QUESTION}],
        response_format=Order,
        max_tokens=MAX_TOKENS,
    )
    return answer.choices[0].message.parsed


def autogen_output_type(llm: Endpoint) -> Any:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    client = OpenAIChatCompletionClient(
        model=llm.model,
        base_url=llm.base_url,
        api_key=llm.api_key,
        max_tokens=MAX_TOKENS,
        model_info={
            "vision": False,
            "function_calling": True,
            "json_output": True,
            "family": "unknown",
            "structured_output": True,
        },
    )
    agent = AssistantAgent("clerk", client, output_content_type=Order)
    return asyncio.run(agent.run(task=QUESTION)).messages[-1].to_text()


def instructor_default(llm: Endpoint) -> Any:
    import instructor  # type: ignore[import-not-found]
    from openai import OpenAI

    client = instructor.from_openai(OpenAI(base_url=llm.base_url, api_key=llm.api_key))
    return client.chat.completions.create(
        model=llm.model,
        response_model=Order,
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=MAX_TOKENS,
        max_retries=1,
    )


def litellm_response_format(llm: Endpoint) -> Any:
    import litellm

    answer = litellm.completion(
        model=f"openai/{llm.model}",
        base_url=llm.base_url,
        api_key=llm.api_key,
        messages=[{"role": "user", "content": QUESTION}],
        response_format=Order,
        max_tokens=MAX_TOKENS,
        _skip_mcp_handler=True,  # litellm's MCP gateway wants mcp 2, crewai beside it mcp 1
    )
    return answer.choices[0].message.content


def crewai_response_format(llm: Endpoint) -> Any:
    from crewai import LLM, Agent

    model = LLM(
        model=f"openai/{llm.model}",
        base_url=llm.base_url,
        api_key=llm.api_key,
        max_tokens=MAX_TOKENS,
    )
    agent = Agent(role="clerk", goal="Take orders.", backstory="You sell.", llm=model, max_iter=2)
    return agent.kickoff(QUESTION, response_format=Order).raw


def llama_index_structured_llm(llm: Endpoint) -> Any:
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(
        model=llm.model,
        api_base=llm.base_url,
        api_key=llm.api_key,
        is_chat_model=True,
        is_function_calling_model=True,
        max_tokens=MAX_TOKENS,
    )
    return model.as_structured_llm(Order).chat([ChatMessage(QUESTION)]).raw


def agno_output_schema(llm: Endpoint) -> Any:
    from agno.agent import Agent
    from agno.models.openai.like import OpenAILike

    model = OpenAILike(llm.model, base_url=llm.base_url, api_key=llm.api_key, max_tokens=MAX_TOKENS)
    return Agent(model=model, output_schema=Order, telemetry=False).run(QUESTION).content


def google_adk_output_schema(llm: Endpoint) -> Any:
    from google.adk.agents import LlmAgent
    from google.adk.models.lite_llm import LiteLlm
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    # litellm's MCP gateway wants mcp 2, google-adk beside it mcp 1
    model = LiteLlm(
        f"openai/{llm.model}",
        api_base=llm.base_url,
        api_key=llm.api_key,
        max_tokens=MAX_TOKENS,
        _skip_mcp_handler=True,
    )
    agent = LlmAgent(name="clerk", model=model, instruction="Take orders.", output_schema=Order)

    async def ask() -> str:
        runner = InMemoryRunner(agent=agent, app_name="shop")
        session = await runner.session_service.create_session(app_name="shop", user_id="user")
        message = types.Content(role="user", parts=[types.Part(text=QUESTION)])
        events = runner.run_async(user_id="user", session_id=session.id, new_message=message)
        return "".join([str(event.content) async for event in events])

    return asyncio.run(ask())


def dspy_json_adapter(llm: Endpoint) -> Any:
    import dspy

    lm = dspy.LM(
        f"openai/{llm.model}",
        api_base=llm.base_url,
        api_key=llm.api_key,
        cache=False,
        max_tokens=MAX_TOKENS,
    )
    ask = dspy.Signature("question -> order: Order", custom_types={"Order": Order})
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        return dspy.Predict(ask)(question=QUESTION).order


def haystack_response_format(llm: Endpoint) -> Any:
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.utils import Secret

    generator = OpenAIChatGenerator(
        Secret.from_token(llm.api_key),
        llm.model,
        api_base_url=llm.base_url,
        generation_kwargs={"response_format": Order, "max_tokens": MAX_TOKENS},
    )
    return generator.run([ChatMessage.from_user(QUESTION)])["replies"][0].text


def semantic_kernel_response_format(llm: Endpoint) -> Any:
    from openai import AsyncOpenAI
    from semantic_kernel.agents import ChatCompletionAgent
    from semantic_kernel.connectors.ai.open_ai import (
        OpenAIChatCompletion,
        OpenAIChatPromptExecutionSettings,
    )
    from semantic_kernel.functions import KernelArguments

    client = AsyncOpenAI(base_url=llm.base_url, api_key=llm.api_key)
    settings = OpenAIChatPromptExecutionSettings(response_format=Order, max_tokens=MAX_TOKENS)
    agent = ChatCompletionAgent(
        service=OpenAIChatCompletion(ai_model_id=llm.model, async_client=client),
        name="clerk",
        instructions="Take orders.",
        arguments=KernelArguments(settings),
    )
    return asyncio.run(agent.get_response(messages=QUESTION)).content


def strands_structured_output(llm: Endpoint) -> Any:
    from strands import Agent
    from strands.models.openai import OpenAIModel

    model = OpenAIModel(
        client_args={"base_url": llm.base_url, "api_key": llm.api_key},
        model_id=llm.model,
        params={"max_tokens": MAX_TOKENS},
    )
    agent = Agent(model=model, callback_handler=None)
    return agent(QUESTION, structured_output_model=Order, limits={"turns": 4}).structured_output
