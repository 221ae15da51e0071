"""The frameworks that `ltrain init` knows: how each gets the address, key and name of its model."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Framework:
    """The lines of a framework in a generated `agent.py`."""

    name: str
    scopes: tuple[str, ...]
    """Parts of the names of the instrumentation scopes that record it."""
    imports: str
    model: str
    """The expression that makes its model from `llm`."""
    builds: str
    """The return value of the function that the user fills in."""
    call: str
    """The expression that runs `agent` on `task["input"]` and returns its answer."""


UNKNOWN = Framework(
    "",
    (),
    "",
    "llm",
    "a function of a question, which calls the model at llm.base_url with llm.api_key, llm.model",
    'agent(task["input"])',
)
"""The lines for a program whose framework is not in the table."""

OPENAI_KEYWORDS = "base_url=llm.base_url, api_key=llm.api_key"

FRAMEWORKS = (
    Framework(
        "langchain",
        ("instrumentation.langchain", "genai.langchain"),
        "from langchain_openai import ChatOpenAI",
        f"ChatOpenAI(model=llm.model, {OPENAI_KEYWORDS})",
        "your agent or graph, such as create_agent(model, tools)",
        'agent.invoke({"messages": [("user", task["input"])]})["messages"][-1].content',
    ),
    Framework(
        "openai-agents",
        ("openai_agents",),
        "from agents import OpenAIChatCompletionsModel, Runner\nfrom openai import AsyncOpenAI",
        f"OpenAIChatCompletionsModel(llm.model, AsyncOpenAI({OPENAI_KEYWORDS}))",
        'your agent, such as Agent(name="…", model=model, tools=[…])',
        'Runner.run_sync(agent, task["input"]).final_output',
    ),
    Framework(
        "pydantic-ai",
        ("pydantic-ai", "pydantic_ai"),
        "from pydantic_ai.models.openai import OpenAIChatModel\n"
        "from pydantic_ai.providers.openai import OpenAIProvider",
        f"OpenAIChatModel(llm.model, provider=OpenAIProvider({OPENAI_KEYWORDS}))",
        "your agent, such as Agent(model, tools=[…])",
        'agent.run_sync(task["input"]).output',
    ),
    Framework(
        "smolagents",
        ("smolagents",),
        "from smolagents import OpenAIModel",
        "OpenAIModel(llm.model, api_base=llm.base_url, api_key=llm.api_key)",
        "your agent, such as ToolCallingAgent([…], model)",
        'agent.run(task["input"])',
    ),
    Framework(
        "crewai",
        ("crewai",),
        "from crewai import LLM",
        f'LLM(model=f"openai/{{llm.model}}", {OPENAI_KEYWORDS})',
        "your crew, whose tasks use {input}",
        'agent.kickoff(inputs={"input": task["input"]}).raw',
    ),
    Framework(
        "agno",
        ("instrumentation.agno",),
        "from agno.models.openai.like import OpenAILike",
        f"OpenAILike(id=llm.model, {OPENAI_KEYWORDS})",
        "your agent, such as Agent(model=model, tools=[…])",
        'agent.run(task["input"]).content',
    ),
    Framework(
        "openai",
        ("openai",),
        "from openai import OpenAI",
        f"OpenAI({OPENAI_KEYWORDS})",
        "a function of a question that calls model.chat.completions.create(model=llm.model, …)",
        'agent(task["input"])',
    ),
)
"""In order of preference: a framework's calls often have spans of the client below them."""

OTHERS = {
    "autogen": "autogen",
    "dspy": "dspy",
    "google": "google-adk",
    "haystack": "haystack",
    "litellm": "litellm",
    "llama_index": "llama-index",
    "semantic_kernel": "semantic-kernel",
    "strands": "strands-agents",
}
"""Other frameworks, by a part of their scopes."""


def find_framework(scopes: list[str]) -> Framework | None:
    """Return the framework that these instrumentation scopes record."""
    *frameworks, client = FRAMEWORKS
    for framework in frameworks:
        if any(part in scope for part in framework.scopes for scope in scopes):
            return framework
    for part, name in OTHERS.items():
        if any(part in scope for scope in scopes):
            return replace(UNKNOWN, name=name)
    return client if any("openai" in scope for scope in scopes) else None
