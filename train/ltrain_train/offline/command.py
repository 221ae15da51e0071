"""`ltrain sft`: reports what there is to train on, trains, and prints the losses."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ltrain_train.loop import Plan, describe_serving, hold_lock
from ltrain_train.offline.sft import Epoch, OfflineVersion, train_sft
from ltrain_train.offline.sft_rows import SftRows, select_rows
from ltrain_train.offline.source import make_plan, open_source
from ltrain_train.policy import Policies

AFTER_SIGNAL = "no version is published; the same command starts again"
"""What is printed about the time after a signal."""

__all__ = ["make_plan", "run_sft"]


def run_sft(
    plan: Plan,
    store: str | None,
    dataset: Path | None,
    *,
    again: bool,
    replace: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Report what there is to train on in a dataset or in the store's traces, and train on it.

    Args:
        again: also train on rollouts that the policy was trained on before.
        replace: replace a dataset of the same version that a version was trained on.
        dry_run: report only.
    """
    with hold_lock(plan.home, plan.name, (plan.policy,), AFTER_SIGNAL) as lock:
        source = open_source(
            plan, "sft", store, dataset, again=again, replace=replace, register=not dry_run
        )
        data = select_rows(source)
        if not as_json:
            print("\n".join(data.report.lines()), flush=True)
        elif dry_run or not data.report.trained:
            print(json.dumps(data.report.as_dict()), flush=True)
        data.report.check()
        if dry_run:
            if not as_json:
                print("Nothing was trained. To train, run it without --dry-run.")
            return
        if not as_json:
            print("epoch     loss held out seconds", flush=True)
        version = train_sft(data, lock, _ignore if as_json else _print_epoch)
    _print_version(data, version, as_json=as_json)


def _ignore(epoch: Epoch) -> None:
    """Print nothing."""


def _print_epoch(epoch: Epoch) -> None:
    loss, held_out = map(_number, (epoch.loss, epoch.held_out))
    print(f"{epoch.number:>5} {loss:>8} {held_out:>8} {epoch.seconds:>7.1f}", flush=True)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _print_version(data: SftRows, version: OfflineVersion, *, as_json: bool) -> None:
    plan, report = data.source.plan, data.report
    path = Policies(plan.home).path(plan.policy, version.number)
    if as_json:
        fields: dict[str, Any] = {
            "version": version.number,
            "path": str(path),
            "served": version.served,
            "epochs": [asdict(epoch) for epoch in version.epochs],
        }
        print(json.dumps(report.as_dict() | fields))
        return
    if rise := _describe_rise(version.epochs):
        print(rise)
    print(
        f"Policy {plan.policy} v{version.number} at {path}: trained on {report.rows} rows of "
        f"dataset {report.dataset}."
    )
    print(describe_serving(plan.policy, served=version.served))
    print(f"`ltrain show {plan.policy}@{version.number}` shows what it was trained on.")


def _describe_rise(epochs: tuple[Epoch, ...]) -> str:
    """Return a sentence if the held-out loss was lower after an earlier epoch; else empty."""
    measured = [(epoch.held_out, epoch.number) for epoch in epochs if epoch.held_out is not None]
    if not measured or min(measured)[1] == measured[-1][1]:
        return ""
    loss, number = min(measured)
    return (
        f"The held-out loss was lowest, {loss:.4f}, after epoch {number}: more epochs fit the "
        "trained rows only. Lower --epochs or sft.learning_rate."
    )
