"""`ltrain sft` and `ltrain dpo`: report what there is to train on, train, and print the losses."""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Literal

from ltrain_train.finetune.dpo import train_dpo
from ltrain_train.finetune.dpo_pairs import DpoPairs, select_pairs
from ltrain_train.finetune.report import OfflineReport
from ltrain_train.finetune.sft import Epoch, OfflineVersion, train_sft
from ltrain_train.finetune.sft_rows import SftRows, select_rows
from ltrain_train.finetune.source import OfflineSource, open_source, plan_offline
from ltrain_train.overlays import TRL
from ltrain_train.policy import Policies
from ltrain_train.processes import RunLock
from ltrain_train.publishing import describe_serving
from ltrain_train.runs import Plan, hold_lock
from ltrain_train.updates import OfflineOptions

AFTER_SIGNAL = "no version is published; the same command starts again"
"""The printed sentence on the time after a signal."""

__all__ = ["plan_offline", "run_offline"]

Trainer = Literal["sft", "dpo"]


def run_offline(plan: Plan, trainer: Trainer, options: OfflineOptions) -> None:
    """Report what there is to train on in a dataset or in the store's traces, and train on it."""
    dry_run, as_json = options.dry_run, options.as_json
    if trainer == "dpo" and not dry_run:
        TRL.find()
    with hold_lock(plan.home, plan.name, (plan.policy,), AFTER_SIGNAL) as lock:
        source = open_source(plan, trainer, options)
        data = _select(trainer, source)
        data.report.print(as_json=as_json, is_last=dry_run)
        data.report.check()
        if dry_run:
            if not as_json:
                print("Nothing was trained. To train, run it without --dry-run.")
            return
        if not as_json:
            print("epoch     loss held out   margin seconds", flush=True)
        version = _train(data, lock, _ignore if as_json else _print_epoch)
    _print_version(plan, data.report, version, as_json=as_json)


def _select(trainer: Trainer, source: OfflineSource) -> SftRows | DpoPairs:
    return select_rows(source) if trainer == "sft" else select_pairs(source)


def _train(
    data: SftRows | DpoPairs, lock: RunLock, on_epoch: Callable[[Epoch], None]
) -> OfflineVersion:
    if isinstance(data, SftRows):
        return train_sft(data, lock, on_epoch)
    return train_dpo(data, lock, on_epoch)


def _ignore(epoch: Epoch) -> None:
    """Print nothing."""


def _print_epoch(epoch: Epoch) -> None:
    numbers = [f"{_number(each):>8}" for each in (epoch.loss, epoch.held_out, epoch.margin)]
    print(f"{epoch.number:>5} {' '.join(numbers)} {epoch.seconds:>7.1f}", flush=True)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _print_version(
    plan: Plan, report: OfflineReport, version: OfflineVersion, *, as_json: bool
) -> None:
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
        f"Policy {plan.policy} v{version.number} at {path}: trained on {report.trained} "
        f"{report.unit} of dataset {report.dataset}."
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
        "trained rows only. Lower --epochs or the learning_rate."
    )
