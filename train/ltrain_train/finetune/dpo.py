"""Preference training: TRL's DPO in a process of its own, then the next version."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from opentelemetry.trace import Tracer

from ltrain_instrument import attributes
from ltrain_train.finetune.dpo_job import DpoJob, run_job
from ltrain_train.finetune.dpo_pairs import DpoPairs
from ltrain_train.finetune.sft import Epoch, OfflineVersion
from ltrain_train.gateway import GatewayClient
from ltrain_train.processes import Children, RunLock
from ltrain_train.publishing import (
    TrainedVersion,
    find_gateway,
    publish,
    register,
    registers_adapters,
)
from ltrain_train.store import open_service_provider
from ltrain_train.updates import prune, require_no_trial, require_rank, run_folder

RATE = 0.1
"""The default learning rate, as a factor of `train.learning_rate`."""


def train_dpo(data: DpoPairs, lock: RunLock, on_epoch: Callable[[Epoch], None]) -> OfflineVersion:
    """Train on the pairs and publish the next version.

    Args:
        lock: the guard of TRL's process holds it until that has ended.
        on_epoch: called with each finished epoch, and with the loss before training.
    """
    plan, parent = data.source.plan, data.source.lineage.version
    policies, epochs = plan.policies(), list[Epoch]()
    require_no_trial(plan)
    with ExitStack() as stack, lock.working():
        provider = open_service_provider("ltrain-loop", plan.home)
        stack.callback(provider.shutdown)
        tracer = provider.get_tracer(attributes.SCOPE_LEARNER)
        gateway = stack.enter_context(find_gateway(plan.home, plan.policy))
        job = make_job(data, gateway)
        children = stack.enter_context(Children(lock.descriptors))
        for epoch in _run(data, job, children, tracer):
            epochs.append(epoch)
            on_epoch(epoch)
        is_adapter = bool(job.lora_rank) and not job.merged
        base = policies.read_version(plan.policy, parent).weights_version if is_adapter else None
        dataset = data.source.dataset.id
        version = TrainedVersion(plan.policy, parent, dataset, plan.recipe.digest, base)
        number = register(policies, job.out, version, data.rollouts)
        publish(policies, plan.policy, number, plan.recipe.deploy, gateway, tracer, version.origin)
    prune(plan, parent)
    return OfflineVersion(number, tuple(epochs), served=gateway is not None)


def make_job(data: DpoPairs, gateway: GatewayClient | None) -> DpoJob:
    """Return the job of TRL's process."""
    plan, version = data.source.plan, data.source.lineage.version
    policies, train, dpo = plan.policies(), plan.train, plan.recipe.dpo
    artifact = policies.read_version(plan.policy, version).artifact
    fitting = train.micro_batch_tokens // max(1, 2 * data.report.longest)
    return DpoJob(
        base=policies.weights_path(plan.policy, version),
        adapter=require_rank(plan, policies, version) if artifact == "adapter" else None,
        out=policies.draft(plan.policy),
        merged=not registers_adapters(plan.recipe, plan.policy, gateway),
        pairs=data.trained.absolute(),
        held_out=data.held_out.absolute() if data.report.held_out_pairs else None,
        lora_rank=train.lora_rank,
        lora_alpha=train.lora_alpha or 2 * train.lora_rank,
        dtype="bf16" if train.dtype == "bf16" else "fp32",
        learning_rate=dpo.learning_rate or RATE * train.learning_rate,
        gradient_clip=train.gradient_clip,
        beta=dpo.beta,
        epochs=dpo.epochs,
        pairs_per_step=dpo.pairs_per_step,
        micro_batch=max(1, fitting),
        seed=plan.recipe.rollout.seed if plan.recipe.rollout else 0,
    )


def _run(data: DpoPairs, job: DpoJob, children: Children, tracer: Tracer) -> Iterator[Epoch]:
    """Yield the epochs of a job, and record each optimizer step as a span."""
    plan, began, steps = data.source.plan, time.monotonic(), list[dict[str, float]]()
    events = run_job(
        job,
        run_folder(plan, "dpo") / "job.json",
        plan.home / "logs" / "dpo.log",
        children,
        hang_timeout=plan.train.hang_timeout,
    )
    count, start = 0, time.time_ns()
    for event in events:
        if event["kind"] == "step":
            steps.append(event["metrics"])
            count += 1
            _record_step(data, tracer, {"step": count} | event["metrics"], start)
            start = time.time_ns()
            continue
        held_out, last = event["held_out"], steps[-1] if steps else {}
        margin = held_out.get("margin", last.get("margin"))
        seconds = time.monotonic() - began
        yield Epoch(
            event["number"], event["loss"], held_out.get("loss"), last, seconds, margin=margin
        )
        began, start = time.monotonic(), time.time_ns()
        steps.clear()


def _record_step(data: DpoPairs, tracer: Tracer, metrics: dict[str, float], start: int) -> None:
    plan = data.source.plan
    values: dict[str, str | int | float] = {
        attributes.POLICY_NAME: plan.policy,
        attributes.POLICY_VERSION: data.source.lineage.version,
        attributes.DATASET_ID: data.source.dataset.id,
        attributes.RECIPE_DIGEST: plan.recipe.digest,
    }
    values |= {attributes.TRAIN + name: value for name, value in metrics.items()}
    tracer.start_span(attributes.SPAN_STEP, attributes=values, start_time=start).end()
