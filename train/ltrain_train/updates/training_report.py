"""The training data of an offline run, reported before it loads a model, or why there is none.

Every execution that was read is either trained on or left out for one reason, and so is every call
of the policy in the executions that are compared.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from ltrain_instrument.quantity import quantity
from ltrain_train.errors import NothingToTrain
from ltrain_train.learner import pack_step, split_into_steps
from ltrain_train.updates.data_report import DataReport, count_left_out
from ltrain_train.updates.training_rows import (
    GROUP,
    IN_OUTDATED_GROUP,
    NO_WEIGHTS,
    RowSelection,
)
from ltrain_transforms.estimators import ESTIMATORS
from ltrain_transforms.policy_lineage import REASONS as OUTDATED_REASONS
from ltrain_transforms.recipe import PRODUCTION_ESTIMATOR, Train
from ltrain_transforms.rendering import RENDERED

OTHER_POLICY = "other_policy"
"""The reason of an execution whose rows are all of policies that are not trained."""
NO_LLM_CALL = "no_llm_call"
"""The reason of an execution without an LLM call, such as a request that only reads a page."""

COLUMNS = (
    *("execution_id", "transition_ids", "response_mask", "tokens"),
    *("prompt_ids", "response_ids", "temperature", "group_id", "rollout_id", "sample_id"),
)
"""The columns of the rows that the report reads."""


@dataclass(frozen=True, slots=True)
class RewardSummary:
    """One reward of the recipe."""

    name: str
    executions: int
    """Executions that have it."""
    mean: float | None
    """Mean over these of its sum in an execution; None without any."""

    def __str__(self) -> str:
        mean = "" if self.mean is None else f", mean {self.mean:.3f}"
        return f"in {quantity(self.executions, 'execution')}{mean}"


@dataclass(frozen=True, slots=True)
class Balance:
    """The number of all items, of trained items, and of the others by reason."""

    all: int
    trained: int
    left_out: Mapping[str, int]

    def __str__(self) -> str:
        return f"{self.all} = {self.trained} to train on + {count_left_out(self.left_out)}"


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of rows at a Tinker server, in USD by the recipe's prices."""

    update: float
    """A forward pass of the rows before each optimizer step, and one forward and backward pass."""
    sampling: float
    """To sample the calls of the rows: their prompts, and their sampled tokens."""

    def __str__(self) -> str:
        return (
            f"about ${self.update:.4f} for the update and ${self.sampling:.4f} to sample the rows, "
            "by the recipe's prices"
        )

    @classmethod
    def estimate(cls, train: Train, tokens: int, row_tokens: int) -> "Cost | None":
        """Return the cost of rows; None if the recipe has no prices."""
        prices = train.tinker.prices
        if train.backend != "tinker" or prices is None:
            return None
        forward = row_tokens * (2 - 1 / train.steps_per_wave)  # of later steps only their own rows
        update = forward * prices.prefill + row_tokens * prices.train
        sampling = (row_tokens - tokens) * prices.prefill + tokens * prices.sample
        return cls(update / 1e6, sampling / 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReport(DataReport):
    """The training data of an offline run."""

    mode: str
    estimator: str
    executions: Balance
    groups: int
    groups_of_one: int
    rewards: tuple[RewardSummary, ...]
    without_reward: int
    """Executions with an LLM call and without feedback: without an evaluation that the recipe
    names, or where it names none, without any reward."""
    calls: Balance
    """Calls of the policy in the executions that are compared and not left out."""
    llm_calls: int
    """LLM calls of all executions."""
    rows: int
    rendered_rows: int
    """The rows with a call whose tokens the chat template rendered."""
    tokens: int
    """Sampled tokens in the rows."""
    row_tokens: int
    """Tokens of the rows, prompts included."""
    computed_tokens: int
    """Tokens that go through the model, the common prefixes of rows once. With several optimizer
    steps, an update draws the groups of each, so its number differs a little."""
    cost: Cost | None = None
    """The price of the rows at a Tinker server; None: the recipe has no prices."""

    @property
    def trained(self) -> int:
        return self.rows

    def facts(self) -> dict[str, str]:
        return {
            "executions": f"{self.executions}",
            "groups": f"{self.groups}, {self.groups_of_one} of them with one execution",
            **{f"reward {each.name}": f"{each}" for each in self.rewards},
            "no reward": f"{self.without_reward} of {self.executions.all} executions",
            "calls": f"{self.calls}",
            "rows": f"{self.rows} with {self.tokens} tokens to train on",
            **self._rendered(),
            "computed": f"{self.computed_tokens} of {self.row_tokens} tokens go through the model",
            "estimator": f"{self.estimator}, for mode {self.mode}",
            **({"cost": f"{self.cost}"} if self.cost is not None else {}),
        }

    def _rendered(self) -> dict[str, str]:
        """Return the fact about rendered rows; empty without any."""
        if not self.rendered_rows:
            return {}
        fact = (
            f"{self.rendered_rows} of {self.rows} rows, whose tokens may be others than those that "
            "were sampled"
        )
        return {"rendered": fact}


def make_report(
    selection: RowSelection, from_version: int, train: Train, *, shared: bool
) -> TrainingReport:
    """Report on the rows that a version is trained on.

    Args:
        selection: the rows.
        from_version: the version.
        train: the training settings.
        shared: whether the model computes a common prefix of rows once.
    """
    dataset = selection.dataset
    recipe = dataset.manifest["recipe"]
    executions, rewards = dataset.table("executions"), dataset.table("rewards")
    rows = selection.scan().select(COLUMNS).collect()
    reasons = _execution_reasons(selection, executions, rows)
    sizes = executions.group_by(GROUP).len()["len"]
    tokens = int(rows["response_mask"].list.sum().cast(pl.Int64).sum())
    row_tokens = sum(int(rows[name].list.len().sum()) for name in ("prompt_ids", "response_ids"))
    return TrainingReport(
        policy=selection.policy,
        from_version=from_version,
        mode=recipe["source"].get("mode", "train"),
        estimator=recipe["credit"]["outcome"]["estimator"],
        dataset=dataset.id,
        folder=dataset.path,
        executions=_balance(reasons),
        groups=len(sizes),
        groups_of_one=int((sizes == 1).sum()),
        rewards=tuple(_summarize(rewards, recipe["reward"])),
        without_reward=_count_without_reward(executions, rewards, recipe["reward"]),
        calls=_balance(_call_reasons(selection, rows)),
        llm_calls=int(executions["llm_calls"].sum()),
        rows=rows.height,
        rendered_rows=rows.filter(tokens=RENDERED).height,
        tokens=tokens,
        row_tokens=row_tokens,
        computed_tokens=_count_computed(rows, train, shared),
        cost=Cost.estimate(train, tokens, row_tokens),
    )


def _count_computed(rows: pl.DataFrame, train: Train, shared: bool) -> int:
    ranks, tokens = train.ranks // train.sequence_ranks, train.micro_batch_tokens
    return sum(
        pack_step(step, ranks=ranks, tokens=tokens, shared=shared).tokens
        for step in split_into_steps(rows, train.steps_per_wave, "0.0")
    )


def _balance(reasons: pl.DataFrame) -> Balance:
    counts = Counter(reasons["reason"].to_list())
    trained = counts.pop(None, 0)
    return Balance(reasons.height, trained, dict(counts.most_common()))


def _execution_reasons(
    selection: RowSelection, executions: pl.DataFrame, rows: pl.DataFrame
) -> pl.DataFrame:
    """Return `execution_id` and `reason`: why an execution is left out, null if it is trained."""
    drops, transitions = selection.dataset.drops, selection.dataset.table("transitions")
    at_build = drops.filter(
        pl.col("stage").is_in(["executions", "groups"]) | (pl.col("reason") == "no_calls")
    ).select(execution_id="id", at_build="reason")
    outdated = selection.outdated.rename({"reason": "outdated"})
    in_group = transitions.filter(GROUP.is_in(selection.groups.implode()))["execution_id"]
    no_weights = selection.scan_without_weights().select("execution_id").collect().to_series()
    reason = pl.coalesce(
        pl.when(llm_calls=0).then(pl.lit(NO_LLM_CALL)),
        "at_build",
        "outdated",
        pl.when(pl.col("execution_id").is_in(in_group.implode())).then(pl.lit(IN_OUTDATED_GROUP)),
        pl.when(pl.col("execution_id").is_in(no_weights.implode())).then(pl.lit(NO_WEIGHTS)),
        "of_calls",
        pl.lit(OTHER_POLICY),
    )
    trained = pl.col("execution_id").is_in(rows["execution_id"].implode())
    return (
        executions.select("execution_id", "llm_calls")
        .join(at_build.unique("execution_id"), "execution_id", "left")
        .join(outdated, "execution_id", "left")
        .join(_commonest_reasons(selection), "execution_id", "left")
        .select("execution_id", reason=pl.when(~trained).then(reason))
    )


def _commonest_reasons(selection: RowSelection) -> pl.DataFrame:
    """Return `execution_id` and `of_calls`: the commonest reason of its dropped calls."""
    counts = _dropped_calls(selection).group_by("execution_id", "reason").len()
    ranked = counts.sort("execution_id", "len", "reason", descending=[False, True, False])
    first = ranked.group_by("execution_id", maintain_order=True).first()
    return first.select("execution_id", of_calls="reason")


def _dropped_calls(selection: RowSelection) -> pl.DataFrame:
    """Return `execution_id`, `call_id` and `reason` of the policy's calls that are in no row."""
    drops = selection.dataset.drops.filter(stage="rows").select("reason", call_id="id")
    own = selection.dataset.table("transitions").filter(policy=selection.policy)
    return own.select("execution_id", "call_id").join(drops.unique("call_id"), "call_id")


def _call_reasons(selection: RowSelection, rows: pl.DataFrame) -> pl.DataFrame:
    """Return `reason` of each of the policy's calls in executions that have calls to train on.

    These are the trained executions and the executions whose calls are all dropped.
    """
    dropped = _dropped_calls(selection).select("call_id", "reason")
    calls = rows.select(call_id="transition_ids").explode("call_id").drop_nulls()
    trained = calls.with_columns(reason=pl.lit(None, pl.String))
    without_weights = selection.scan_without_weights().select(call_id="transition_ids").collect()
    removed = without_weights.explode("call_id").with_columns(reason=pl.lit(NO_WEIGHTS))
    return pl.concat([trained, removed, dropped.join(calls, "call_id", "anti")])


def _summarize(
    rewards: pl.DataFrame, reward_rules: list[dict[str, Any]]
) -> Iterator[RewardSummary]:
    sums = rewards.group_by("rule", "execution_id").agg(pl.col("value").sum())
    by_rule = sums.group_by("rule").agg(pl.len(), pl.col("value").mean())
    found = {rule: (count, mean) for rule, count, mean in by_rule.iter_rows()}
    for each in reward_rules:
        yield RewardSummary(each["name"], *found.get(each["name"], (0, None)))


def _count_without_reward(
    executions: pl.DataFrame, rewards: pl.DataFrame, reward_rules: list[dict[str, Any]]
) -> int:
    if any(each.get("evaluation") for each in reward_rules):
        rewards = rewards.filter(pl.col("source") != "rule")
    with_calls = executions.filter(pl.col("llm_calls") > 0)
    return with_calls.join(rewards, "execution_id", "anti").height


_WITHOUT_TOKENS = (
    "in {some} the calls have no token ids that the model's server recorded, and texts cannot be "
    "trained on. Send the agent's requests to the gateway (`ltrain serve`); if the model is the "
    "policy's own, render the texts: token_source = 'rendered' in [[policy]]; or convert these "
    "traces for another trainer: `ltrain convert {folder} --to sft --out sft.jsonl`"
)

EXPLANATIONS = {
    "unrewarded": "{some} lack a reward. The recipe names {rewards}; record feedback with "
    "`ltrain.reward()`, and see with `ltrain rules --mode {mode}` what each reward finds",
    "no_llm_call": "{some} have no LLM call, such as requests that only read a page",
    "no_calls": "{some} have no LLM call of policy '{policy}'. Change `agents`, `nodes` or `where` "
    "of [[policy]] in the recipe",
    "no_spread": "{some} have the same reward as those that estimator '{estimator}' compares them "
    "with. Record more executions, or see with `ltrain rules --mode {mode}` which rewards vary",
    "no_tokens": _WITHOUT_TOKENS,
    "untrusted_tokens": _WITHOUT_TOKENS,
    "no_logprobs": _WITHOUT_TOKENS,
}
"""Why executions are left out, and the next step, by the reason of the drop."""


def nothing_to_train(report: TrainingReport, selection: RowSelection) -> NothingToTrain:
    """Return the error for a report without rows: why, and the next step."""
    if report.llm_calls:
        why = " ".join(_sentences(report, selection))
    else:
        why = (
            f"None of the {report.executions.all} executions has an LLM call. `ltrain doctor` "
            "says whether the agent's client of the model is instrumented."
        )
    return NothingToTrain(
        f"Nothing to train on. {why} `ltrain show {report.folder}` lists what is left out."
    )


def _sentences(report: TrainingReport, selection: RowSelection) -> Iterator[str]:
    """Yield a sentence for each reason, the commonest first."""
    yield from selection.left_out.sentences()
    for reason, count in report.executions.left_out.items():
        if reason not in (*OUTDATED_REASONS, IN_OUTDATED_GROUP, NO_WEIGHTS):
            some = f"{count} of {report.executions.all} executions"
            sentence = f"{_explain(report, reason, some)}."
            yield sentence[0].upper() + sentence[1:]


def _explain(report: TrainingReport, reason: str, some: str) -> str:
    if reason == "alone":
        return _explain_alone(report, some)
    explanation = EXPLANATIONS.get(reason, f"{{some}} are left out as `{reason}`")
    return explanation.format(
        some=some,
        folder=report.folder,
        policy=report.policy,
        mode=report.mode,
        estimator=report.estimator,
        rewards=", ".join(f"'{each.name}'" for each in report.rewards),
    )


def _explain_alone(report: TrainingReport, some: str) -> str:
    estimator = ESTIMATORS.get(report.estimator)
    if estimator is not None and estimator.fits_singles:
        return (
            f"{some} have no other one to be compared with, which estimator "
            f"'{report.estimator}' needs. Record more"
        )
    fitting = [
        f"{name} (with peers = 'agent')" if each.for_agents else name
        for name, each in ESTIMATORS.items()
        if each.fits_singles
    ]
    return (
        f"{some} are alone in their group, and estimator '{report.estimator}' compares executions "
        f"within a group. Estimators that fit groups of one: {', '.join(fitting)}. Write "
        f'`estimator = "{PRODUCTION_ESTIMATOR}"` under [credit.outcome] in the recipe'
    )
