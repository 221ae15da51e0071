"""One MCP server of the calculator for a whole process, replaced when it hangs or dies."""

import asyncio
import contextvars
import sys
from collections.abc import Mapping
from typing import Any

from autogen_core import CancellationToken
from autogen_core.tools import TextResultContent, ToolResult, ToolSchema, Workbench
from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams

QUIET_SERVER = (
    "import logging, mcp_server_calculator as server; logging.disable(logging.INFO); server.main()"
)
"""The server's program without a line of log for each request."""
SERVER = StdioServerParams(
    command=sys.executable, args=["-c", QUIET_SERVER], read_timeout_seconds=60
)
"""The server; its own timeout is longer than `DEADLINE`."""
DEADLINE = 5.0
"""Seconds of one calculation: `9**9**9` would take hours, others take milliseconds."""
START_DEADLINE = 60.0
"""Seconds until a started server answers: one alone takes 1.2 s, and many start at once."""

STOP_DEADLINE = 6.0
"""Seconds until a server must have stopped: MCP's client kills it after two and two more."""


class Calculator(Workbench):  # type: ignore[misc]  # AutoGen is not in every environment
    """A workbench that all agents of a process share.

    A server computes one expression at a time, and one that hangs keeps all others waiting. So
    calls take turns here: a deadline that passes is that of the call that hangs.
    """

    def __init__(self, server: StdioServerParams = SERVER, deadline: float = DEADLINE) -> None:
        self._params = server
        self._deadline = deadline
        self._turn = asyncio.Lock()
        self._server: McpWorkbench | None = None
        self._schemas: list[ToolSchema] = []
        self._stopping: set[asyncio.Task[None]] = set()
        self.starts = 0
        """Number of servers that this process has started."""

    async def list_tools(self) -> list[ToolSchema]:
        """Return the tools; only the first call asks the server, so later ones cannot hang."""
        if not self._schemas:
            async with self._turn:
                await self._running()
        return self._schemas

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        """Calculate; a server that hangs or has died is an error of this call alone."""
        async with self._turn:
            server = await self._running()
            try:
                call = server.call_tool(name, arguments, cancellation_token, call_id)
                result = await asyncio.wait_for(call, self._deadline)
            except TimeoutError:
                self._discard()
                return _error(name, f"no result within {self._deadline:g} seconds")
            if result.is_error and not await self._answers(server):
                self._discard()
                return _error(name, "the calculator stopped")
            return result

    async def _running(self) -> McpWorkbench:
        if self._server is None:
            server = McpWorkbench(self._params)
            # The server outlives the question that started it: without a context of its own, its
            # tasks would be part of that question's trace.
            context = contextvars.Context()
            starting = asyncio.get_running_loop().create_task(_start(server), context=context)
            self._schemas = await asyncio.wait_for(starting, START_DEADLINE)
            self._server = server
            self.starts += 1
        return self._server

    async def _answers(self, server: McpWorkbench) -> bool:
        """Return whether the server is alive: a wrong expression is an error, too."""
        try:
            return bool(await asyncio.wait_for(server.list_tools(), self._deadline))
        except Exception:  # any failure of the transport means the same, and the call reports it
            return False

    def _discard(self) -> None:
        """Stop the server beside the next call: one that hangs takes seconds to end."""
        if self._server is not None:
            stopping = asyncio.create_task(_stop(self._server))
            self._stopping.add(stopping)
            stopping.add_done_callback(self._stopping.discard)
            self._server = None

    async def start(self) -> None:
        """Start the server; the first call does it otherwise."""
        await self.list_tools()

    async def stop(self) -> None:
        """Stop the server and wait for those that were discarded."""
        async with self._turn:
            self._discard()
            await asyncio.gather(*self._stopping)

    async def reset(self) -> None:
        """Do nothing: the calculator has no state."""

    async def save_state(self) -> Mapping[str, Any]:
        """Return no state."""
        return {}

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Do nothing: the calculator has no state."""


async def _start(server: McpWorkbench) -> list[ToolSchema]:
    await server.start()
    return list(await server.list_tools())


async def _stop(server: McpWorkbench) -> None:
    try:
        # AutoGen waits without end for a session that fails while it is being closed
        await asyncio.wait_for(server.stop(), STOP_DEADLINE)
    except Exception:  # a dead server fails in many ways, and nothing depends on its end
        return


def _error(name: str, text: str) -> ToolResult:
    return ToolResult(
        name=name, result=[TextResultContent(content=f"Error: {text}")], is_error=True
    )
