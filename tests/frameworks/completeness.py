"""What the traces of a framework's agent hold, criterion by criterion: `docs/completeness.md`.

C1 to C7 are NeMo Gym's acceptance criteria for trajectories, the others are ours. Each is measured
on a run against what the model server was asked and answered; a row of the page is the result, and
a test fails where the two differ. `COMPLETENESS=write make test-frameworks` writes the rows anew.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.frameworks.model import PROMPT_IDS, TOKEN_IDS
from tests.frameworks.said import asked, read

if TYPE_CHECKING:
    from tests.frameworks.conftest import Ran

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "completeness.md"
TOOLS_IN_PARALLEL = 2
Measure = Callable[["Ran"], bool]


def counted(ran: Ran) -> bool:
    """Each answer of the server is one call, with its model and finish reason."""
    good = _good(ran)
    told = all(call["model"] and call["finish_reason"] for call in good)
    return told and len(good) == len(_answers(ran))


def token_counts(ran: Ran) -> bool:
    """Prompt, completion, reasoning and cached tokens are as the server said wherever it did."""
    names = ("input_tokens", "output_tokens", "reasoning_tokens", "cached_tokens")
    read = [tuple(call[name] for name in names) for call in _good(ran)]
    return read.count((7, 5, 1, 2)) == sum(asked.counted for asked in ran.asked) > 0


def turns(ran: Ran) -> bool:
    """Each turn has identity, number, time, question, answer, what was thought, and its end."""
    (execution,) = ran.executions.to_dicts()
    identity = (execution["run_id"], execution["task_id"], execution["rollout_id"])
    said = [part for call in ran.of("llm") for part in _parts(call["output"])]
    thought = [part["content"] for part in said if part["type"] == "reasoning"]
    return (
        identity == ("frameworks", "task1", "rollout1")
        and execution["llm_calls"] == len(ran.of("llm"))
        and thought == [each.thought for each in _answers(ran) if each.thought]
        and all(
            call["input"] and (call["output"] or call["status"] == "error") and call["start"]
            for call in ran.of("llm")
        )
    )


def histories(ran: Ran) -> bool:
    """What the model was shown and what it said is in the calls, message by message."""
    good = _good(ran)
    shown = [asked(each.body) for each in ran.asked if each.step and not each.failed]
    said = [(each.text, each.calls) for each in _answers(ran)]
    return sorted(shown) == sorted(read(call["input"]) for call in good) and (
        sorted(said) == sorted(_said(call["output"]) for call in good)
    )


def tool_calls(ran: Ran) -> bool:
    """Each tool that was asked for is one call: arguments, result, status, start, end, asker."""
    asked = {part["id"] for call in ran.of("llm") for part in _requests(call)}
    tools = ran.of("tool")
    told = ("arguments", "requested_by")
    return (
        {tool["tool_call_id"] for tool in tools} == asked
        and len(tools) == len(asked) > 0
        and {tool["status"] for tool in tools} == {"ok", "error"}
        and all(tool["end"] > tool["start"] for tool in tools)
        and all(tool[name] is not None for tool in tools for name in told)
        and all(tool["result"] is not None or tool["status"] == "error" for tool in tools)
    )


def parallel_tools(ran: Ran) -> bool:
    """Tools that one turn asked for have times of their own, which overlap."""
    tools = ran.of("tool")
    for call in ran.of("llm"):
        side = [tool for tool in tools if tool["requested_by"] == call["call_id"]]
        if len(side) == len(_requests(call)) == TOOLS_IN_PARALLEL:
            starts, ends = {it["start"] for it in side}, {it["end"] for it in side}
            return max(starts) < min(ends) and len(starts) + len(ends) > TOOLS_IN_PARALLEL
    return False


def agent_side(ran: Ran) -> bool:
    """All of it is the agent's own word, no server stood between, and every span arrived."""
    return "ltrain.gateway" not in ran.spans["scope"] and ran.executions["complete"].all()


def one_trace(ran: Ran) -> bool:
    """All that describes a model's call is in one trace, which its requests name to the server."""
    trace = dict(ran.spans.select("span_id", "trace_id").iter_rows())
    sent = [asked.headers.get("traceparent", "--").split("-") for asked in ran.asked]
    return all(trace.get(names[2]) == names[1] for names in sent) and all(
        len({trace[span] for span in call["source_spans"]}) == 1 for call in ran.of("llm")
    )


def agents(ran: Ran) -> bool:
    """Each LLM and tool call names its agent."""
    return all(call["agent"] for kind in ("llm", "tool") for call in ran.of(kind))


def variables(ran: Ran) -> bool:
    """The state has what the user asked, what tools answered and what the agent said."""
    named = set(ran.states["variable"])
    results = {f"tool.{part['name']}.result" for c in ran.of("llm") for part in _requests(c)}
    said = any(name == "answer" or name.endswith(".output") for name in named)
    return "input" in named and results <= named and said


def token_ids(ran: Ran) -> bool:
    """Each answered chat completion has the server's token ids and log-probabilities."""
    chats = [each for each in ran.asked if each.path.endswith("/chat/completions")]
    answered = sum(each.step is not None and not each.failed for each in chats)
    told = [
        (call["prompt_token_ids"], call["response_token_ids"], call["response_logprobs"])
        for call in _good(ran)
    ]
    sampled = (PROMPT_IDS, [TOKEN_IDS], [[-0.5] * len(TOKEN_IDS)])
    return told.count(sampled) == answered > 0


CRITERIA: dict[str, tuple[str, Measure]] = {
    "C1": ("token statistics and response metadata of each model call", counted),
    "C2": (
        "prompt, completion, reasoning and cached token counts (total is a sum), as far as the "
        "server gives them",
        token_counts,
    ),
    "C3": (
        "task and rollout identity, turn number, timestamp, question, answer, reasoning, "
        "resolution and step count",
        turns,
    ),
    "C4": ("what the model was shown and what it said can be made again", histories),
    "C5": ("output, status, start, end and duration of each tool call, failures found", tool_calls),
    "C6": ("a timing of its own for each of several parallel tool calls", parallel_tools),
    "C7": ("the agent's side alone suffices, whatever it runs in and against", agent_side),
    "trace": ("framework and client of a call in one trace, that goes on to the server", one_trace),
    "agent": ("each LLM and tool call names its agent", agents),
    "state": ("state variables: input, results of tools, answer", variables),
    "ids": (
        "the sampled token ids and their log-probabilities, without a gateway "
        "(`LTRAIN_POLICY_URLS`)",
        token_ids,
    ),
}


def check(name: str, environment: str, ran: Ran, why: Mapping[str, str] | None = None) -> None:
    """Hold a framework's row of the page to what its run shows.

    Args:
        name: the framework, as its distribution is named.
        why: in a few words, for each criterion that the framework makes impossible.
    """
    why = why or {}
    found = {criterion: measure(ran) for criterion, (_, measure) in CRITERIA.items()}
    missed = {criterion for criterion, held in found.items() if not held}
    assert missed == why.keys(), f"{name}: not held {sorted(missed)}, excused {sorted(why)}"
    marks = ["no" if criterion in missed else "yes" for criterion in CRITERIA]
    version = _version(name, environment)
    row = _row([f"{name} {version}", *marks, "; ".join(f"{k}: {v}" for k, v in why.items())])
    if os.environ.get("COMPLETENESS") == "write":
        PAGE.write_text(_page({**_rows(), name: row}))
    assert _rows().get(name) == row, f"docs/completeness.md is stale: {__doc__}"
    assert PAGE.read_text() == _page(_rows()), f"docs/completeness.md is stale: {__doc__}"


def _page(rows: Mapping[str, str]) -> str:
    criteria = [_row([f"**{each}**", text]) for each, (text, _) in CRITERIA.items()]
    lines = [
        "# What traces hold, framework by framework",
        "",
        "<!-- Made from the runs of tests/frameworks: `COMPLETENESS=write make test-frameworks` "
        "-->",
        "",
        "Small real agents, unchanged, under `opentelemetry-instrument`, against a server that "
        "knows what it was asked and what it answered. Each has tools (one fails softly, one with "
        "an exception), parallel tool calls, a stream, a retry after a 500. C1 to C7 are the "
        "acceptance criteria of NeMo Gym's [trajectory capability matrix]"
        "(https://docs.nvidia.com/nemo/gym/main/reference/trajectory-capabilities/), the others "
        "are ours. A `no` says why.",
        "",
        _row(["criterion", "held when the rows of `calls`, `states` and `executions` have"]),
        _row(["---"] * 2),
        *criteria,
        "",
        _row(["framework", *CRITERIA, "why not"]),
        _row(["---"] * (len(CRITERIA) + 2)),
        *(rows[name] for name in sorted(rows)),
    ]
    return "\n".join(lines) + "\n"


def _rows() -> dict[str, str]:
    """Give the page's rows by framework."""
    if not PAGE.exists():
        return {}
    table = PAGE.read_text().partition("\n| framework ")[2].splitlines()[2:]
    return {line.split()[1]: line for line in table if line.startswith("| ")}


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _version(name: str, environment: str) -> str:
    """Give the version that the environment's lock pins."""
    lock = (ROOT / "setup" / f"{environment}.lock").read_text()
    found = re.search(rf"^{re.escape(name)}==(\S+)", lock, re.MULTILINE)
    if found is None:
        raise LookupError(f"setup/{environment}.lock pins no '{name}'")
    return found[1]


def _good(ran: Ran) -> list[dict[str, Any]]:
    return [call for call in ran.of("llm") if call["status"] == "ok"]


def _answers(ran: Ran) -> list[Any]:
    """Give the step that the server answered each request with."""
    return [asked.step for asked in ran.asked if not asked.failed and asked.step is not None]


def _parts(messages: str | None) -> list[dict[str, Any]]:
    return [part for message in json.loads(messages or "[]") for part in message["parts"]]


def _requests(call: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [part for part in _parts(call["output"]) if part["type"] == "tool_call"]


def _said(output: str | None) -> tuple[str, tuple[tuple[str, str], ...]]:
    parts = _parts(output)
    text = "".join(part["content"] for part in parts if part["type"] == "text")
    asked = [part for part in parts if part["type"] == "tool_call"]
    return text, tuple((part["name"], _json(part["arguments"])) for part in asked)


def _json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
