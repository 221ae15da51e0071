"""Explain why an offline run has nothing to train on, and what to do next."""

from ltrain_train.errors import NothingToTrain
from ltrain_train.loop.training_report import TrainingReport
from ltrain_train.loop.training_rows import RowSelection
from ltrain_transforms.estimators import ESTIMATORS
from ltrain_transforms.recipe import PRODUCTION_ESTIMATOR

TOKENLESS = frozenset({"no_tokens", "untrusted_tokens", "no_logprobs"})
"""Reasons of calls that were not recorded with the ids of their sampled tokens."""


def nothing_to_train(report: TrainingReport, selection: RowSelection) -> NothingToTrain:
    """Return the error for a report without rows, with the commonest reason and the next step."""
    return NothingToTrain(
        f"Nothing to train on: {_explain(report, selection)} `ltrain show {report.folder}` lists "
        "what is left out."
    )


def _explain(report: TrainingReport, selection: RowSelection) -> str:
    every = f"each of the {report.executions.all} executions"
    if not report.llm_calls:
        return (
            f"none of the {report.executions.all} executions has an LLM call. `ltrain doctor` says "
            "whether the agent's client of the model is instrumented."
        )
    reason = next(iter(report.executions.left_out))
    if sentences := list(selection.left_out.sentences()):
        return " ".join(sentences)
    if reason == "alone":
        return _explain_alone(report)
    if reason in TOKENLESS:
        return (
            "the calls have no token ids that the model's server recorded; texts cannot be trained "
            "on. Send the agent's requests to the gateway (`ltrain serve`), or convert these "
            f"traces for another trainer: `ltrain convert {report.folder} --to rendered`."
        )
    if reason == "unrewarded":
        names = ", ".join(f"'{each.name}'" for each in report.rewards)
        return (
            f"{every} lacks a reward. The recipe names {names}; record feedback with "
            "`ltrain.reward()`, and see with `ltrain rules` what each reward finds."
        )
    if reason == "no_calls":
        return (
            f"no execution has an LLM call of policy '{report.policy}'. Change `agents`, `nodes` "
            "or `where` of [[policy]] in the recipe."
        )
    if reason == "no_spread":
        return (
            f"all rewards are equal, so estimator '{report.estimator}' finds no execution better "
            "than another. Record more executions, or see with `ltrain rules` which rewards vary."
        )
    return f"{every} is left out ({_count_reasons(report)})."


def _explain_alone(report: TrainingReport) -> str:
    if ESTIMATORS[report.estimator].fits_singles if report.estimator in ESTIMATORS else False:
        return (
            f"estimator '{report.estimator}' compares executions with each other, and only one has "
            "a reward. Record more."
        )
    fitting = [
        f"{name} (with peers = 'agent')" if each.for_agents else name
        for name, each in ESTIMATORS.items()
        if each.fits_singles
    ]
    return (
        f"every execution is alone in its group, and estimator '{report.estimator}' compares "
        f"executions within a group. Estimators that fit groups of one: {', '.join(fitting)}. "
        f'Write `estimator = "{PRODUCTION_ESTIMATOR}"` under [credit.outcome] in the recipe.'
    )


def _count_reasons(report: TrainingReport) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in report.executions.left_out.items())
