"""The facts of stored traces that a recipe needs: executions, agents, tools, tasks, rewards."""

import json
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import polars as pl

from ltrain_collector.promoted_columns import MODE_SQL, UNIT_SQL
from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_instrument.errors import UnknownName
from ltrain_instrument.identity import TrainableMode
from ltrain_transforms.calls import calls
from ltrain_transforms.recipe import Source, failed_results
from ltrain_transforms.rewards import read_evaluations
from ltrain_transforms.source import Selection, execution_unit, read_spans
from ltrain_transforms.starter.conversations import Conversations, hold_out, read_conversations
from ltrain_transforms.starter.program import Program, find_program
from ltrain_transforms.traces import Role, has_thinking, read_messages, sender_roles

MAX_UNITS = 200
"""The newest rollouts or traces that are read; tasks are read of all."""

_ALTERED = (
    f"(SpanAttributes['{attributes.REDACTED}'] = 'true' "
    f"OR SpanAttributes['{attributes.CUT}'] LIKE '%{attributes.TASK_INPUT}%' "
    f"OR SpanAttributes['{attributes.CUT}'] LIKE '%{attributes.TASK_FIELDS}%')"
)
"""SQL expression: whether a span has a task of which content was shortened or redacted."""


@dataclass(frozen=True, slots=True)
class StoredReward:
    """An evaluation that the traces have."""

    name: str
    source: Literal["runner", "person", "agent"]
    executions: int


@dataclass(frozen=True, slots=True)
class Survey:
    """The facts of the newest traces of a run, or of all traffic."""

    mode: TrainableMode
    run: str | None
    execution: Literal["rollout", "session", "trace"]
    executions: int = 0
    groups: int = 0
    """Tasks with two rollouts or more in one wave."""
    policies: list[str] = field(default_factory=list)
    agents: list[str] = field(default_factory=list)
    """Agents or graph nodes with LLM calls."""
    llm_calls: int = 0
    dropped_spans: int = 0
    """Spans of this mode that belong to no execution."""
    drop_reasons: list[str] = field(default_factory=list)
    with_tokens: int = 0
    """LLM calls of which the gateway recorded the token ids."""
    longest: int = 0
    """Most tokens of prompt and response in one call."""
    temperature: float | None = None
    """Of all calls of mode train, if it is the same."""
    tools: list[str] = field(default_factory=list)
    tool_calls: int = 0
    failed_tools: int = 0
    failed_results: dict[str, int] = field(default_factory=dict)
    """Tools that are `ok` although their result says that they failed, by who writes such texts."""
    offers_tools: bool = False
    """Whether requests contain definitions of tools."""
    rewards: list[StoredReward] = field(default_factory=list)
    tasks: list[dict[str, Any]] = field(default_factory=list)
    validation: list[dict[str, Any]] = field(default_factory=list)
    altered_tasks: int = 0
    """Tasks whose content was shortened or redacted: they cannot be run again."""
    models: list[str] = field(default_factory=list)
    """The models that were called, the most frequent first."""
    thinks: bool = False
    """Whether an answer has reasoning."""
    conversations: Conversations = field(default_factory=Conversations)
    program: Program = field(default_factory=Program)

    @property
    def drives(self) -> bool:
        """Whether the recipe lets `ltrain run` drive the agent, and not train on the traffic."""
        return self.run is not None or bool(self.tasks and not self.with_tokens)


def take_survey(store: Store, run: str | None = None, mode: TrainableMode | None = None) -> Survey:
    """Return what the traces say: of `run`, else of the newest run that a runner drove, else of
    production traffic.
    """
    if run is None and mode in (None, "train"):
        run = _newest_run(store)
    mode = mode or ("train" if run is not None else "prod")
    execution = execution_unit(store, run)
    empty = Survey(mode=mode, run=run, execution=execution)
    condition = _condition(run, mode)
    since = _since(store, *condition)
    if since is None:
        _check_run(store, run)
        return empty
    source = Source(run=run, execution=execution, since=since, mode=mode)
    spans, unresolved = read_spans(store, source, Selection(mode=mode))
    rows, _ = calls(spans)
    llm, tools = rows.filter(pl.col("kind") == "llm"), rows.filter(pl.col("kind") == "tool")
    lengths = llm.select(pl.sum_horizontal("input_tokens", "output_tokens")).to_series()
    temperatures = llm["temperature"].drop_nulls().unique().to_list()
    recorded = {mode: _tasks(store, run, mode) for mode in ("train", "val")}
    altered = sum(stored.altered for stored in recorded.values())
    evaluations, _ = read_evaluations(spans, rows)
    conversations = read_conversations(spans, rows, evaluations)
    tasks, validation = recorded["train"].rows, recorded["val"].rows
    if not tasks and not altered:
        tasks = conversations.tasks
    if not validation:
        tasks, validation = hold_out(tasks)
    return Survey(
        mode=mode,
        run=run,
        execution=execution,
        executions=spans["execution_id"].n_unique(),
        groups=_groups(spans),
        policies=distinct_names(llm["policy"]),
        agents=distinct_names(llm.select(pl.coalesce("node", "agent")).to_series()),
        llm_calls=llm.height,
        dropped_spans=unresolved.height,
        drop_reasons=distinct_names(unresolved["reason"]),
        with_tokens=llm.filter(
            pl.col("prompt_token_ids").list.len() > 0, pl.col("response_token_ids").list.len() > 0
        ).height,
        longest=int(lengths.max() or 0),  # type: ignore[arg-type]
        temperature=temperatures[0] if mode == "train" and len(temperatures) == 1 else None,
        tools=distinct_names(tools["name"]),
        tool_calls=tools.height,
        failed_tools=tools.filter(pl.col("status") == "error").height,
        failed_results=_failed_results(tools),
        offers_tools=llm["tools"].drop_nulls().len() > 0,
        rewards=_rewards(evaluations),
        tasks=tasks,
        validation=validation,
        altered_tasks=altered,
        models=llm["model"].drop_nulls().value_counts(sort=True)["model"].to_list(),
        thinks=_thinks(llm),
        conversations=conversations,
        program=find_program(store, spans, *condition),
    )


def _failed_results(tools: pl.DataFrame) -> dict[str, int]:
    """Return how many results of successful tools say that they failed, by name of the pattern."""
    results = tools.filter(pl.col("status") == "ok")["result"]
    patterns = sorted(failed_results().items())
    counts = {name: int(results.str.contains(text).sum()) for name, text in patterns}
    return {name: count for name, count in counts.items() if count}


def _thinks(llm: pl.DataFrame) -> bool:
    """Return whether an answer has reasoning."""
    messages = (read_messages(text) for text in llm["output"].drop_nulls())
    return bool((llm["reasoning_tokens"] > 0).any()) or any(map(has_thinking, chain(*messages)))


def _newest_run(store: Store) -> str | None:
    runner = sender_roles.role_condition(Role.RUNNER)
    rows = store.query(
        f"SELECT toString(RunId) AS run FROM otel.spans WHERE {runner} AND RunId != '' "
        f"AND Mode = 'train' AND SpanName = '{attributes.SPAN_ROLLOUT}' "
        "GROUP BY run ORDER BY max(Timestamp) DESC LIMIT 1"
    )
    return str(rows["run"][0]) if rows.height else None


def _check_run(store: Store, run: str | None) -> None:
    """Raise `UnknownName` for a run that the store does not have."""
    rows = store.query("SELECT DISTINCT toString(RunId) AS run FROM otel.spans WHERE RunId != ''")
    if run is not None and run not in (names := rows["run"].to_list()):
        raise UnknownName("run", run, names)


def _condition(run: str | None, mode: TrainableMode) -> tuple[str, dict[str, str]]:
    """Return the SQL condition of the spans of a run, else of a mode, and its parameters."""
    if run is not None:
        return "RunId = {run:String}", {"run": run}
    return f"{MODE_SQL} = {{mode:String}}", {"mode": mode}


def _since(store: Store, where: str, parameters: dict[str, str]) -> str | None:
    """Return the start of the oldest of the newest units; None if there is none."""
    units = (
        "SELECT min(Timestamp) AS began FROM otel.spans "
        f"WHERE {where} AND SpanName != '{attributes.SPAN_EVALUATION}' "
        f"GROUP BY {UNIT_SQL} ORDER BY began DESC LIMIT {MAX_UNITS}"
    )
    rows = store.query(
        f"SELECT toString(min(began), 'UTC') AS since, count() AS units FROM ({units})",
        parameters,
    )
    [(since, count)] = rows.iter_rows()
    return f"{str(since).replace(' ', 'T')}Z" if count else None


def _groups(spans: pl.DataFrame) -> int:
    group = ["run_id", "mode", "wave", "task_id"]
    named = spans.filter(pl.col("task_id").is_not_null(), pl.col("rollout_id").is_not_null())
    return (
        named.group_by(group)
        .agg(pl.col("rollout_id").n_unique())
        .filter(pl.col("rollout_id") > 1)
        .height
    )


def distinct_names(column: pl.Series) -> list[str]:
    """Return the values of a column, sorted."""
    return sorted(map(str, column.drop_nulls().unique()))


def _rewards(evaluations: pl.DataFrame) -> list[StoredReward]:
    found = evaluations.group_by("name", "source").agg(pl.col("execution_id").n_unique())
    # `reward`, the name of a single number, comes first; then those of the runner
    first = (pl.col("name") != "reward", pl.col("source") != "runner")
    ordered = found.sort(*first, "name")
    return [StoredReward(*row) for row in ordered.iter_rows()]


@dataclass(frozen=True, slots=True)
class _StoredTasks:
    """The tasks that a runner recorded, and how many more it recorded in part only."""

    rows: list[dict[str, Any]]
    altered: int


def _tasks(store: Store, run: str | None, mode: TrainableMode) -> _StoredTasks:
    """Return the tasks of a run in the order of their ids."""
    if run is None:
        return _StoredTasks([], 0)
    text = "anyIf(SpanAttributes['{0}'], SpanAttributes['{0}'] != '' AND NOT {1})"
    rows = store.query(
        f"SELECT TaskId AS id, any(toString(Domain)) AS domain, "
        f"{text.format(attributes.TASK_INPUT, _ALTERED)} AS input, "
        f"{text.format(attributes.TASK_FIELDS, _ALTERED)} AS fields, "
        f"countIf(SpanAttributes['{attributes.TASK_INPUT}'] != '') AS recorded FROM otel.spans "
        f"WHERE RunId = {{run:String}} AND Mode = {{mode:String}} AND TaskId != '' "
        f"AND {sender_roles.role_condition(Role.RUNNER)} "
        "GROUP BY id HAVING recorded > 0 ORDER BY id",
        {"run": run, "mode": mode},
    )
    whole = rows.filter(pl.col("input") != "")
    tasks = [_task(*row) for row in whole.select("id", "domain", "input", "fields").iter_rows()]
    return _StoredTasks(tasks, rows.height - whole.height)


def _task(id: str, domain: str, input_: str, fields: str) -> dict[str, Any]:
    task: dict[str, Any] = {"id": id} | ({"domain": domain} if domain else {})
    more = _parsed(fields) if fields else {}
    return {**task, "input": _parsed(input_), **(more if isinstance(more, dict) else {})}


def _parsed(text: str) -> Any:
    """Return the value of JSON; other text stays text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
