"""Whose death it is when a process that ran an agent dies."""

from ltrain_train.rollout.attempt import Attempt, Ending, Outcome
from ltrain_train.rollout.machine import oom_kills


def of_death(attempt: Attempt, how: str, *, shared: bool = False) -> Ending:
    """Return how an attempt ends whose process died.

    It is the agent's error, unless the kernel killed a process for memory meanwhile, or other
    attempts ran in the process: then it is tried again, once, with a process to itself.

    Args:
        attempt: what ran in it.
        how: the process and its end, such as "its worker died".
        shared: whether other attempts ran in it at any time of this one.
    """
    starved = oom_kills() > attempt.oom_kills
    if attempt.alone or not (shared or starved):
        return Ending(Outcome.ERROR, how)
    why = "the kernel killed for memory meanwhile" if starved else "others ran in it"
    return Ending(Outcome.INFRA, f"{how}; {why}: it is tried again alone", died=True)
