"""A folder with a prompt, an agent that reads it, tasks and a critic; vLLM is a fake program.

The fake vLLM repeats the words of a prompt, and a result with the word `w5` has the reward 1. The
first edit of the critic has it.
"""

import json
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.train.evaluation.conftest import Project, project

__all__ = ["project"]

RECIPE = """
[source]
run = "words"

[rollout]
tasks = "train.jsonl"
validation = "val.jsonl"
test = "test.jsonl"
agent = "{agent}"
reward = "words_agent:score"
workers = 2

[[policy]]
name = "policy"

[[reward]]
name = "answer"
evaluation = "reward"

[[serve.route]]
model = "critic"
url = "{critic}/v1"
key = "CRITIC_KEY"

[prompt]
policy = "greeting"
rounds = 2
beam_width = 1
minibatch = 2
gradients = 2
selection_budget = 4

[prompt.critic]
model = "critic"
timeout = 3
"""
AGENT = """
import json
import os
import sys
from types import SimpleNamespace

import ltrain
import plain
from opentelemetry import trace


def solve(task, llm):
    if "CRITIC_KEY" in os.environ:
        raise ValueError("the agent has the critic's key")
    text = ltrain.prompt("greeting").format(question=task["input"])
    return {"answer": plain.ask(llm, text)}


def score(task, result):
    return float("w5" in result["answer"].split())


if __name__ == "__main__":
    environ = os.environ
    llm = SimpleNamespace(
        model=environ["OPENAI_MODEL"],
        api_key=environ["OPENAI_API_KEY"],
        base_url=environ["OPENAI_BASE_URL"],
    )
    with trace.get_tracer("words").start_as_current_span("answer"):
        print(json.dumps(solve(ltrain.task(), llm)))
"""
EDITS = (
    "Here it is: <prompt>w5 {question}</prompt>",
    "<prompt>w2 without the slot</prompt>",
    "no prompt at all",
)
"""The edits of the critic; the last one is repeated."""


class CriticServer(ThreadingHTTPServer):
    """Answers requests for critiques, edits and paraphrases; keeps the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.failing_from: int | None = None
        """The number of the request from which on it answers with status 503."""
        self.holds = threading.Event()
        """While it is not set, answers wait."""
        self.holds.set()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, system: str) -> str:
        if "paraphrase" in system:
            return "<prompt>w2 {question} w6 {more}</prompt>"
        if "a critique of the prompt" not in system:
            return f"It lacks a word ({len(self.requests)})."
        edits = sum("a critique of the prompt" in self.system(each) for each in self.requests)
        return EDITS[min(edits, len(EDITS)) - 1]

    @staticmethod
    def system(request: dict[str, Any]) -> str:
        return str(request["messages"][0]["content"])

    def shown(self, number: int) -> dict[str, Any]:
        """Return what the critic read in a request."""
        shown: dict[str, Any] = json.loads(self.requests[number]["messages"][1]["content"])
        return shown


class _Handler(BaseHTTPRequestHandler):
    server: CriticServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server = self.server
        server.keys.add(self.headers["authorization"])
        if server.failing_from is not None and len(server.requests) >= server.failing_from:
            return self._send(503, {})
        server.requests.append(body)
        text = server.answer(server.system(body))
        server.holds.wait(60)
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return self._send(200, {"id": "c", "choices": [choice], "usage": usage})

    def _send(self, status: int, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        try:
            self.wfile.write(content)
        except OSError:  # the client was killed
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def critic() -> Iterator[CriticServer]:
    with CriticServer() as server:
        yield server
        server.holds.set()
        server.shutdown()


@pytest.fixture
def words(project: Project, critic: CriticServer) -> Project:
    """The project with a recipe, an agent as a function, and version 0 of the prompt."""
    (project.folder / "words_agent.py").write_text(AGENT)
    (project.folder / "prompt.txt").write_text("w1 {question}")
    shutil.copy(project.folder / "words_agent.py", project.folder / "command.py")
    project.environ["CRITIC_KEY"] = "k-1"
    project.write_tasks([{"id": f"t{n}", "input": f"w{n + 10}"} for n in range(4)], "train.jsonl")
    project.write_tasks([{"id": f"v{n}", "input": f"w{n + 20}"} for n in range(3)], "val.jsonl")
    project.write_tasks([{"id": f"x{n}", "input": f"w{n + 30}"} for n in range(2)], "test.jsonl")
    write_recipe(project, critic, "words_agent:solve")
    project.policies.register("greeting", project.folder / "prompt.txt")
    return project


def write_recipe(project: Project, critic: CriticServer, agent: str) -> None:
    (project.folder / "ltrain.toml").write_text(RECIPE.format(agent=agent, critic=critic.url))


COMMAND = f"exec {sys.executable} command.py"
