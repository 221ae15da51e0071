"""The process of a calculator agent whose MCP server hangs and stops; prints what it answers."""

import asyncio
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "calculator"))

from autogen_ext.tools.mcp import StdioServerParams
from calculator import Calculator

AGENT: Any = import_module("agent")
FAULTY = StdioServerParams(
    command=sys.executable, args=[str(Path(__file__).with_name("faulty_calculator.py"))]
)
ENDPOINT = SimpleNamespace(base_url=os.environ["OPENAI_BASE_URL"], api_key="none", model="fake")


async def solve(*expressions: str) -> dict[str, Any]:
    calls = [f"calculate(expression={expression})" for expression in expressions]
    plan = "; ".join([*calls, "### ANSWER: 1 ###"])
    solved: dict[str, Any] = await AGENT.solve({"input": f"Solve. [[{plan}]]"}, ENDPOINT)
    return solved


async def main() -> None:
    calculator = Calculator(FAULTY, deadline=2)
    AGENT.calculator = lambda: calculator
    solved = [await solve("wrong"), await solve("hang", "right"), await solve("stop", "right")]
    solved += [await solve("last"), await solve("after", "right")]
    solved += await asyncio.gather(*(solve(f"together{number}") for number in range(5)))
    await calculator.stop()
    print(json.dumps([[one["answer"], one["failed"]] for one in solved]), calculator.starts)


asyncio.run(main())
