"""An agent with two calls, whose tasks take different times."""

import json
import random
import time
from typing import Any
from urllib.request import Request, urlopen


def solve(task: dict[str, Any], llm: Any) -> dict[str, Any]:
    words = []
    for _ in range(2):
        words.append(_ask(llm, task["input"]))
        time.sleep(0.02 * int(task["id"][1:]) % 0.1)
    return {"answers": words, "draw": random.randrange(2)}


def _ask(llm: Any, text: str) -> str:
    body = {"model": llm.model, "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    headers = {"authorization": f"Bearer {llm.api_key}", "content-type": "application/json"}
    request = Request(f"{llm.base_url}/chat/completions", json.dumps(body).encode(), headers)
    with urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


def score(task: dict[str, Any], result: dict[str, Any]) -> float:
    assert result["answers"] == [task["input"]] * 2
    return float(result["draw"])
