"""The places above a page: run, wave, task and sample, as far as its data has them."""

from ltrain_transforms.reports import GroupReference, Kind, Reference, WaveReference
from ltrain_transforms.show import RolloutTree
from ltrain_ui.addresses import address_of, task_address

Crumb = tuple[str, str | None]
"""The text of a place, and its address; None: it is the page itself."""
SHORT = 12
"""Characters of an id."""


def run_crumbs(run: str, *rest: Crumb) -> list[Crumb]:
    """Return the places of a page below a run."""
    own = address_of(Reference(Kind.RUN, run)) if rest else None
    return [("Runs", "/"), (run, own), *rest]


def wave_crumbs(wave: WaveReference, *rest: Crumb) -> list[Crumb]:
    """Return the places of a page below a wave."""
    own = address_of(wave) if rest else None
    return run_crumbs(wave.run, (f"{wave.mode} {wave.wave}", own), *rest)


def group_crumbs(group: GroupReference, *rest: Crumb) -> list[Crumb]:
    """Return the places of a page below the rollouts of a task in a wave."""
    own = address_of(group) if rest else None
    wave = WaveReference(group.run, group.mode, group.wave)
    return wave_crumbs(wave, (group.task, own), *rest)


def group_of(shown: RolloutTree) -> GroupReference | None:
    """Return the group of a rollout; None if its data names none."""
    run, mode, wave, task = _place(shown)
    if shown.kind != "rollout" or not run or not mode or wave is None or not task:
        return None
    return GroupReference(run, mode, wave, task)


def _place(shown: RolloutTree) -> tuple[str | None, str | None, int | None, str | None]:
    """Return run, mode, wave and task of an execution, as far as known."""
    row = shown.attempts[-1].execution if shown.attempts else {}
    return row.get("run_id"), row.get("mode"), row.get("wave"), row.get("task_id")


def execution_crumbs(shown: RolloutTree) -> list[Crumb]:
    """Return the places of the page of a rollout, a trace or a session."""
    run, mode, wave, task = _place(shown)
    sample = shown.attempts[-1].execution.get("sample_index") if run else None
    own: Crumb = (f"{shown.kind} {shown.rollout[:SHORT]}", None)
    if not run:
        return [("Rollouts", "/rollouts"), own]
    if sample is not None:
        own = (f"sample {sample}", None)
    if (group := group_of(shown)) is not None:
        return group_crumbs(group, own)
    if wave is None or not mode:
        place = [(task, task_address(run, task))] if task else []
        return run_crumbs(run, *place, own)
    return wave_crumbs(WaveReference(run, mode, wave), own)


def policy_crumbs(policy: str, *rest: Crumb) -> list[Crumb]:
    """Return the places of a page below a policy."""
    own = address_of(Reference(Kind.POLICY, policy)) if rest else None
    return [("Policies", "/policies"), (policy, own), *rest]
