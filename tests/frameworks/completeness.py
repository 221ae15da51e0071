"""Measures what the traces of a framework's agent contain: `docs/completeness.md`.

C1 to C7 are NeMo Gym's acceptance criteria for trajectories; the others are ltrain's. Each is
measured by comparing a run with the requests and responses of the model server. The results are a
row of the page, and a test fails if they differ. A second table has the ways that were trained.
A third one has the coding agents. `COMPLETENESS=write make test-frameworks` rewrites the rows.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.frameworks.clients import CLIENTS, DELEGATIONS, Client
from tests.frameworks.model import PROMPT_IDS, TOKEN_IDS
from tests.frameworks.turns import turns_of_input, turns_of_request

if TYPE_CHECKING:
    from tests.frameworks.conftest import RunResult

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "completeness.md"
TOOLS_IN_PARALLEL = 2
TRAINING = "its agent asks for an answer by"
"""The heading of the ways in the table of training."""
CLIENT_CRITERIA = {
    "tools": "each tool is a call with arguments, result and requester; aider has none",
    "times": "each tool has its start and end, from the agent's telemetry",
    "failures": "the agent reports that the command failed; else "
    "[`tool_error`](recipe.md#source) finds it in the result",
    "cut": "an interrupted call has the text until then; an agent that does not stream has none",
}
"""The columns of coding agents that are yes or no."""
GRAMMARS = {"json": "JSON", "structural_tag": "structural tag"}
"""The name of each kind of grammar in the table of training."""
Measure = Callable[["RunResult"], bool]


def one_call_per_response(result: RunResult) -> bool:
    """Each response of the server is one call, with its model and finish reason."""
    successful = _successful_calls(result)
    described = all(call["model"] and call["finish_reason"] for call in successful)
    return described and len(successful) == len(_response_steps(result))


def token_counts(result: RunResult) -> bool:
    """Prompt, completion, reasoning and cached tokens are as the server reported them."""
    names = ("input_tokens", "output_tokens", "reasoning_tokens", "cached_tokens")
    counts = [tuple(call[name] for name in names) for call in _successful_calls(result)]
    return counts.count((7, 5, 1, 2)) == sum(each.has_usage for each in result.model_requests) > 0


def turns(result: RunResult) -> bool:
    """Each turn has identity, number, time, input, output, reasoning and status."""
    (execution,) = result.executions.to_dicts()
    identity = (execution["run_id"], execution["task_id"], execution["rollout_id"])
    parts = [part for call in result.calls_of_kind("llm") for part in _parts(call["output"])]
    reasoning = [part["content"] for part in parts if part["type"] == "reasoning"]
    return (
        identity == ("frameworks", "task1", "rollout1")
        and execution["llm_calls"] == len(result.calls_of_kind("llm"))
        and reasoning == [each.reasoning for each in _response_steps(result) if each.reasoning]
        and all(
            call["input"] and (call["output"] or call["status"] == "error") and call["start"]
            for call in result.calls_of_kind("llm")
        )
    )


def histories(result: RunResult) -> bool:
    """The calls contain the model's input and output, message by message."""
    successful = _successful_calls(result)
    inputs = [
        turns_of_request(each.body)
        for each in result.model_requests
        if each.step and not each.failed
    ]
    outputs = [(each.text, each.calls) for each in _response_steps(result)]
    return sorted(inputs) == sorted(turns_of_input(call["input"]) for call in successful) and (
        sorted(outputs) == sorted(_text_and_tool_calls(call["output"]) for call in successful)
    )


def tool_calls(result: RunResult) -> bool:
    """Each requested tool is one call: arguments, result, status, start, end and requester."""
    requested = {part["id"] for call in result.calls_of_kind("llm") for part in _requests(call)}
    tools = result.calls_of_kind("tool")
    required = ("arguments", "requested_by")
    return (
        {tool["tool_call_id"] for tool in tools} == requested
        and len(tools) == len(requested) > 0
        and {tool["status"] for tool in tools} == {"ok", "error"}
        and all(tool["end"] > tool["start"] for tool in tools)
        and all(tool[name] is not None for tool in tools for name in required)
        and all(tool["result"] is not None or tool["status"] == "error" for tool in tools)
    )


def parallel_tools(result: RunResult) -> bool:
    """Tools that one turn requested have their own times, which overlap."""
    tools = result.calls_of_kind("tool")
    for call in result.calls_of_kind("llm"):
        parallel = [tool for tool in tools if tool["requested_by"] == call["call_id"]]
        if len(parallel) == len(_requests(call)) == TOOLS_IN_PARALLEL:
            starts, ends = {it["start"] for it in parallel}, {it["end"] for it in parallel}
            return max(starts) < min(ends) and len(starts) + len(ends) > TOOLS_IN_PARALLEL
    return False


def agent_side(result: RunResult) -> bool:
    """The agent's process recorded everything without a gateway, and every span arrived."""
    return "ltrain.gateway" not in result.spans["scope"] and result.executions["complete"].all()


def one_trace(result: RunResult) -> bool:
    """All spans of a model call are in one trace, which its requests propagate to the server."""
    trace = dict(result.spans.select("span_id", "trace_id").iter_rows())
    headers = [each.headers.get("traceparent", "--").split("-") for each in result.model_requests]
    return all(trace.get(header[2]) == header[1] for header in headers) and all(
        len({trace[span] for span in call["source_spans"]}) == 1
        for call in result.calls_of_kind("llm")
    )


def agents(result: RunResult) -> bool:
    """Each LLM and tool call names its agent."""
    return all(call["agent"] for kind in ("llm", "tool") for call in result.calls_of_kind(kind))


def variables(result: RunResult) -> bool:
    """The state contains the user's input, the results of tools and the agent's output."""
    names = set(result.states["variable"])
    results = {
        f"tool.{part['name']}.result"
        for call in result.calls_of_kind("llm")
        for part in _requests(call)
    }
    has_output = any(name == "answer" or name.endswith(".output") for name in names)
    return "input" in names and results <= names and has_output


def token_ids(result: RunResult) -> bool:
    """Each successful chat completion has the server's token ids and log-probabilities."""
    chats = [each for each in result.model_requests if each.path.endswith("/chat/completions")]
    expected = sum(each.step is not None and not each.failed for each in chats)
    recorded = [
        (call["prompt_token_ids"], call["response_token_ids"], call["response_logprobs"])
        for call in _successful_calls(result)
    ]
    sampled = (PROMPT_IDS, [TOKEN_IDS], [[-0.5] * len(TOKEN_IDS)])
    return recorded.count(sampled) == expected > 0


CRITERIA: dict[str, tuple[str, Measure]] = {
    "C1": (
        "each response of the model is one call, with token statistics and response metadata",
        one_call_per_response,
    ),
    "C2": (
        "prompt, completion, reasoning and cached token counts, where the server reports them "
        "(the total is their sum)",
        token_counts,
    ),
    "C3": (
        "task and rollout identity, turn number, timestamp, input, output, reasoning, status and "
        "step count",
        turns,
    ),
    "C4": ("the model's input and output can be reconstructed", histories),
    "C5": (
        "output, status, start, end and duration of each tool call, with failures detected",
        tool_calls,
    ),
    "C6": ("separate timings for each of several parallel tool calls", parallel_tools),
    "C7": ("data from the agent's process is sufficient, in any environment", agent_side),
    "trace": (
        "framework and client of a call are in one trace, which continues at the server",
        one_trace,
    ),
    "agent": ("each LLM and tool call names its agent", agents),
    "state": ("state variables: input, results of tools, answer", variables),
    "ids": (
        "the sampled token ids and their log-probabilities, without a gateway "
        "(`LTRAIN_POLICY_URLS`)",
        token_ids,
    ),
}


@dataclass(frozen=True)
class Way:
    """A way in which a framework's agent asks for an answer."""

    framework: str
    """The framework, as its distribution is named."""
    text: str
    """What a user writes, as the page shows it."""


def check(
    name: str, environment: str, result: RunResult, reasons: Mapping[str, str] | None = None
) -> None:
    """Compare a framework's row of the page with the result of its run.

    Args:
        name: the framework, as its distribution is named.
        reasons: a few words for each criterion that the framework makes impossible.
    """
    reasons = reasons or {}
    measured = {criterion: measure(result) for criterion, (_, measure) in CRITERIA.items()}
    failed = {criterion for criterion, holds in measured.items() if not holds}
    assert failed == reasons.keys(), f"{name}: failed {sorted(failed)}, reasons {sorted(reasons)}"
    marks = ["no" if criterion in failed else "yes" for criterion in CRITERIA]
    version = _version(name, environment)
    notes = "; ".join(f"{criterion}: {reason}" for criterion, reason in reasons.items())
    row = _row([f"{name} {version}", *marks, notes])
    if os.environ.get("COMPLETENESS") == "write":
        PAGE.write_text(_page({**_rows(), name: row}, _training_rows()))
    assert _rows().get(name) == row, f"docs/completeness.md is stale: {__doc__}"
    _check_page()


def check_training(
    environment: str, ways: Mapping[str, Way], grammars: Mapping[str, Set[str]]
) -> None:
    """Compare the rows of ways that were trained with those of the page.

    Args:
        ways: the ways by their names; each call of theirs was trained.
        grammars: the kinds of the server's grammars in the calls of each way.
    """
    rows = {}
    for name, way in ways.items():
        kinds = ", ".join(sorted(GRAMMARS[each] for each in grammars.get(name, ()))) or "none"
        title = f"{way.framework} {_version(way.framework, environment)}"
        rows[title, way.text] = _row([title, way.text, kinds, "yes"])
    if os.environ.get("COMPLETENESS") == "write":
        others = {key: row for key, row in _training_rows().items() if key not in rows}
        PAGE.write_text(_page(_rows(), {**others, **rows}))
    found = _training_rows()
    assert {key: found.get(key) for key in rows} == rows, f"{PAGE.name} is stale: {__doc__}"
    _check_page()


def check_clients() -> None:
    """Compare the rows of the coding agents, as their tests check them, with those of the page."""
    if os.environ.get("COMPLETENESS") == "write":
        PAGE.write_text(_page(_rows(), _training_rows()))
    _check_page()


def _client_rows() -> Iterable[str]:
    """Yield a row for each coding agent."""
    yield _row(["agent", "route", *CLIENT_CRITERIA, "sub-agents"])
    yield _row(["---"] * (len(CLIENT_CRITERIA) + 3))
    for name, client in sorted(CLIENTS.items()):
        has_tools = any(client.tools)
        marks = [has_tools, client.timed, client.sessions[0].fails, client.cut is not None]
        delegation = DELEGATIONS.get(name)
        agents = "none"
        if delegation is not None:
            kind, place = delegation.place.split()
            agents = f"`{delegation.agent}`, below the {kind} `{place}`"
        title = f"{name} {_client_version(client)}"
        yield _row([title, f"`{client.api}`", *("yes" if each else "no" for each in marks), agents])


def _client_version(client: Client) -> str:
    """Return the version that the lock of the agent's environment pins."""
    if client.environment != "clients":
        return _version(client.package, client.environment)
    lock = json.loads((ROOT / "setup" / "clients" / "package-lock.json").read_text())
    version: str = lock["packages"][f"node_modules/{client.package}"]["version"]
    return version


def _check_page() -> None:
    whole = _page(_rows(), _training_rows())
    assert PAGE.read_text() == whole, f"docs/completeness.md is stale: {__doc__}"


def _page(rows: Mapping[str, str], training: Mapping[tuple[str, str], str]) -> str:
    criteria = [_row([f"**{each}**", text]) for each, (text, _) in CRITERIA.items()]
    lines = [
        "# Completeness of traces by framework",
        "",
        "<!-- Made from the runs of tests/frameworks: `COMPLETENESS=write make test-frameworks` "
        "-->",
        "",
        "Small agents of each framework run unchanged under `opentelemetry-instrument`. The test's "
        "model server knows every request and response, and the traces are compared with them. "
        "Each agent has tools (one returns an error, one raises an exception), parallel tool "
        "calls, a stream, and a retry after a 500. C1 to C7 are the acceptance criteria of NeMo "
        "Gym's [trajectory capability matrix]"
        "(https://docs.nvidia.com/nemo/gym/main/reference/trajectory-capabilities/); the others "
        "are ltrain's. Each `no` has its reason.",
        "",
        _row(["criterion", "it holds if the rows of `calls`, `states` and `executions` contain"]),
        _row(["---"] * 2),
        *criteria,
        "",
        _row(["framework", *CRITERIA, "reason"]),
        _row(["---"] * (len(CRITERIA) + 2)),
        *(rows[name] for name in sorted(rows)),
        "",
        "## Training",
        "",
        "Each way was trained in one update of a tiny random policy by a recipe of defaults, with "
        "a real vLLM and its tool parser `hermes`. Every model call of its rollouts became a row, "
        "also where the framework could not parse the answer. vLLM masked ids by the named "
        "grammar, and [the learner applied the same masks](learner.md#structured-output).",
        "",
        _row(["framework", TRAINING, "grammar", "trains with defaults"]),
        _row(["---"] * 4),
        *(training[key] for key in sorted(training)),
        "",
        "## Coding agents",
        "",
        "Each agent ran unchanged and headless behind a [gateway](gateway.md), with [its own "
        "telemetry](how-to/coding-clis.md) where it has any. It edited a file, ran a command that "
        "failed, used two tools at once, was interrupted, and delegated a task to a sub-agent. All "
        "calls have token ids, agents and one session.",
        "",
        _row(["column", "yes means"]),
        _row(["---"] * 2),
        *(_row([f"**{head}**", text]) for head, text in CLIENT_CRITERIA.items()),
        "",
        *_client_rows(),
    ]
    return "\n".join(lines) + "\n"


def _rows() -> dict[str, str]:
    """Return the page's rows by framework."""
    if not PAGE.exists():
        return {}
    table = PAGE.read_text().partition("\n## Training")[0].partition("\n| framework ")[2]
    return {line.split()[1]: line for line in table.splitlines()[2:] if line.startswith("| ")}


def _training_rows() -> dict[tuple[str, str], str]:
    """Return the page's rows of trained ways by framework and way."""
    text = PAGE.read_text().partition("\n## Coding agents")[0]
    table = text.partition(f"| {TRAINING} ")[2].splitlines()[2:]
    cells = {line: line.strip("| ").split(" | ") for line in table if line.startswith("| ")}
    return {(title, text): line for line, (title, text, *_) in cells.items()}


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _version(name: str, environment: str) -> str:
    """Return the version that the environment's lock file pins."""
    lock = (ROOT / "setup" / f"{environment}.lock").read_text()
    pin = re.search(rf"^{re.escape(name)}==(\S+)", lock, re.MULTILINE)
    if pin is None:
        raise LookupError(f"setup/{environment}.lock does not pin '{name}'")
    return pin[1]


def _successful_calls(result: RunResult) -> list[dict[str, Any]]:
    return [call for call in result.calls_of_kind("llm") if call["status"] == "ok"]


def _response_steps(result: RunResult) -> list[Any]:
    """Return the step of each successful response."""
    requests = result.model_requests
    return [each.step for each in requests if not each.failed and each.step is not None]


def _parts(messages: str | None) -> list[dict[str, Any]]:
    return [part for message in json.loads(messages or "[]") for part in message["parts"]]


def _requests(call: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [part for part in _parts(call["output"]) if part["type"] == "tool_call"]


def _text_and_tool_calls(output: str | None) -> tuple[str, tuple[tuple[str, str], ...]]:
    parts = _parts(output)
    text = "".join(part["content"] for part in parts if part["type"] == "text")
    requests = [part for part in parts if part["type"] == "tool_call"]
    return text, tuple((part["name"], _json(part["arguments"])) for part in requests)


def _json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
