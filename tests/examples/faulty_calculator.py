"""An MCP server over stdio that hangs at the expression `hang`, and stops at or after others."""

import json
import sys
from typing import Any

SCHEMA = {
    "type": "object",
    "properties": {"expression": {"type": "string"}},
    "required": ["expression"],
}


def respond(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "faulty", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [{"name": "calculate", "description": "", "inputSchema": SCHEMA}]}
    if method != "tools/call":
        return None
    expression = params["arguments"]["expression"]
    if expression == "hang":
        sys.stdin.read()
    if expression in ("hang", "stop"):
        sys.exit()
    return {
        "content": [{"type": "text", "text": f"result of {expression}"}],
        "isError": expression == "wrong",
    }


for line in sys.stdin:
    request = json.loads(line)
    result = respond(request["method"], request.get("params") or {})
    if result is not None:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
        if result.get("content") and "last" in result["content"][0]["text"]:
            break
