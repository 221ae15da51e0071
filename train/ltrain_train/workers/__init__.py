"""Processes that run an agent's code: warm workers and commands."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.workers.attempt import (
        COUNTED_OUTCOMES,
        MAX_TRIES,
        Attempt,
        AttemptResult,
        Endpoint,
        Outcome,
        RolloutResult,
        WaveResult,
    )
    from ltrain_train.workers.command import last_line, service_environment
    from ltrain_train.workers.executor import (
        AgentProcesses,
        Executor,
        OnEnd,
        agent_environment,
        open_executor,
    )
    from ltrain_train.workers.interpreter import BadInterpreter, find_python
    from ltrain_train.workers.reference import (
        BadReference,
        code_digest,
        is_reference,
        load_function,
    )
    from ltrain_train.workers.results import parse_json

open_face(__name__)
