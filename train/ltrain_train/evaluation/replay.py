"""The prompts of production for the gate `replay`, and the agent that answers them again.

A prompt is that of the last call of an execution: messages and tools as the gateway recorded them.
No tool is called. The answer is the assistant's message, which a judge of the recipe scores.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from ltrain_collector.store import Store
from ltrain_instrument.files import write_file
from ltrain_train.errors import BadRun
from ltrain_train.workers import Endpoint
from ltrain_transforms.recipe import Recipe, Rollout
from ltrain_transforms.rendering import NotText, read_tools, to_chat
from ltrain_transforms.traces import Role, read_messages, sender_roles

PROMPTS = """
SELECT SpanId AS id, SpanAttributes['gen_ai.input.messages'] AS messages,
    SpanAttributes['gen_ai.tool.definitions'] AS tools
FROM otel.spans
WHERE PolicyName = {policy:String} AND Mode IN ('', 'prod') AND StatusCode != 'Error'
    AND SpanAttributes['gen_ai.operation.name'] = 'chat' AND messages != '' AND %s
ORDER BY Timestamp DESC
LIMIT 1 BY TraceId
LIMIT {limit:UInt32}
"""
AGENT = f"{__name__}:answer"
TIMEOUT = 600.0
"""Seconds for an answer."""


def answer(task: Mapping[str, Any], llm: Endpoint) -> dict[str, Any]:
    """Return the model's message to a stored prompt."""
    body = {"model": llm.model, "messages": task["input"]}
    if task["tools"]:
        body["tools"] = task["tools"]
    response = httpx.post(
        f"{llm.base_url}/chat/completions",
        json=body,
        headers={"authorization": f"Bearer {llm.api_key}"},
        timeout=TIMEOUT,
    )
    response.raise_for_status()
    message = response.json()["choices"][0]["message"]
    return {name: value for name, value in message.items() if value}


def replay_recipe(recipe: Recipe, policy: str, store: Store, folder: Path) -> Recipe:
    """Return the recipe with prompts of production as its tasks, and its judges as rewards.

    Args:
        folder: where the file of the tasks is written.

    Raises:
        BadRun: when the store has no prompt of the policy.
    """
    path = folder / f"{policy}.jsonl"
    prompts = read_prompts(store, policy, recipe.deploy.gates.replay_prompts, recipe.source.trust)
    if not prompts:
        raise BadRun(
            f"The store has no call of policy '{policy}' in production whose messages were "
            "recorded, so the gate replay has no prompt. Remove replay of [deploy.gates], or let "
            "users call the policy first."
        )
    write_file(path, "".join(json.dumps(each) + "\n" for each in prompts))
    rollout = Rollout(
        tasks=str(path), validation=str(path), agent=AGENT, agent_sees=("input", "tools")
    )
    judges = tuple(each for each in recipe.reward if each.judge is not None)
    return recipe.model_copy(update={"rollout": rollout, "reward": judges})


def read_prompts(
    store: Store, policy: str, limit: int, trust: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the newest prompts of a policy in production as tasks, one of each trace."""
    condition = sender_roles.role_condition(Role.GATEWAY, sender_roles.trusted_senders(trust))
    found = store.query(PROMPTS % condition, {"policy": policy, "limit": limit})
    prompts = []
    for row in found.iter_rows(named=True):
        try:
            messages = to_chat(read_messages(row["messages"]))
        except NotText:  # an image, which the trace does not have
            continue
        prompts.append({"id": row["id"], "input": messages, "tools": read_tools(row["tools"])})
    return prompts
