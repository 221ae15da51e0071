"""Who is responsible when a process that ran an agent dies."""

from ltrain_train.workers.attempt import Attempt, AttemptResult, Outcome
from ltrain_train.workers.oom import count_oom_kills


def result_of_death(attempt: Attempt, description: str, *, shared: bool = False) -> AttemptResult:
    """Return the result of an attempt whose process died.

    The death is the agent's error, unless the kernel killed a process for lack of memory during the
    attempt, or other attempts ran in the process. Then the rollout is tried once more in a process
    of its own.

    Args:
        attempt: the attempt that ran in the process.
        description: the process and its end, such as "its worker died".
        shared: whether another attempt ran in the process at any time during this one.
    """
    out_of_memory = count_oom_kills() > attempt.oom_kills
    if attempt.isolated or not (shared or out_of_memory):
        return AttemptResult(Outcome.ERROR, description)
    cause = "the kernel killed for memory meanwhile" if out_of_memory else "others ran in it"
    return AttemptResult(
        Outcome.INFRA, f"{description}; {cause}: it is tried again alone", died=True
    )
