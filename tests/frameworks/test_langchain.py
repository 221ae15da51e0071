"""LangChain: its agent, and a model without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run


def test_agent(run: Run) -> None:
    ran = run("frameworks", "langchain_agent")
    completeness.check("langchain", "frameworks", ran)
