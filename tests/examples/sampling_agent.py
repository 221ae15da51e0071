"""The text-to-SQL agent at temperature 1: greedy calls are not trained, and no gateway sets it."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "text_to_sql"))

import agent
from langchain_openai import ChatOpenAI


def sampled(**settings: Any) -> ChatOpenAI:
    """Return the agent's client with another temperature."""
    return ChatOpenAI(**settings | {"temperature": 1})


vars(agent)["ChatOpenAI"] = sampled
agent.main(sys.argv[1:])
