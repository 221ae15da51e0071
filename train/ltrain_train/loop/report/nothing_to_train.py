"""Explain why an offline run has nothing to train on, and what to do next."""

from collections.abc import Iterator

from ltrain_train.errors import NothingToTrain
from ltrain_train.loop.report.training_report import TrainingReport
from ltrain_train.loop.training_rows import IN_OUTDATED_GROUP, RowSelection
from ltrain_transforms.estimators import ESTIMATORS
from ltrain_transforms.policy_lineage import REASONS as OUTDATED_REASONS
from ltrain_transforms.recipe import PRODUCTION_ESTIMATOR

_WITHOUT_TOKENS = (
    "in {some} the calls have no token ids that the model's server recorded, and texts cannot be "
    "trained on. Send the agent's requests to the gateway (`ltrain serve`), or convert these "
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
        if reason not in (*OUTDATED_REASONS, IN_OUTDATED_GROUP):
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
