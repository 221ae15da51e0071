"""The reward as a shell command: it reads a task and a result, and prints their value.

It reads `{"task": {…}, "result": …}` as JSON from stdin, with `diff` after an attempt in a
workspace, whose folder is in `LTRAIN_WORKSPACE`. The last line that it prints is a JSON
number, or an object of numbers. It runs in the recipe's folder, without ltrain's secrets.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from ltrain_instrument.settings import secret_variables
from ltrain_train.processes import ChildDied, Children, Command
from ltrain_train.rollout.rewards import source
from ltrain_train.rollout.rewards.limits import RewardLimits
from ltrain_train.rollout.rewards.source import MAX_CALLS, NO_SERVICES, RewardFailed, parse_values
from ltrain_train.rollout.tasks import Task
from ltrain_train.sandboxes import Changes
from ltrain_train.workers import BadReference, last_line, parse_json, service_environment

KILL_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL."""
ERRORS = (ChildDied, OSError, TypeError, ValueError)

_SHELL_SCRIPT = 'exec <"$1" >"$2"; eval "$3"'


class RewardCommand:
    """Runs a command for each result."""

    def __init__(self, command: str, folder: Path, timeout: float, limits: RewardLimits) -> None:
        """Prepare a command."""
        word = command.strip()
        if " " not in word and which(word) is None and which(folder / word) is None:
            raise BadReference(
                f"'{word}' is no reward: not a URL, not module:function and no program. Write a "
                "function as in reward:score."
            )
        self._command, self._folder, self._timeout = command, folder, timeout
        self._limits = limits
        self._children = Children()
        self.digest = sha256(command.encode()).hexdigest()[:16]
        """Hash of the command line."""

    def score(
        self,
        task: Task,
        result: Any,
        services: Mapping[str, str] = NO_SERVICES,
        changes: Changes | None = None,
    ) -> dict[str, float]:
        """Return the reward values by name."""
        retrying = Retrying(
            retry=retry_if_exception(_is_worth_another_try),
            wait=wait_exponential(source.RETRY_PAUSE),
            stop=stop_after_attempt(MAX_CALLS),
            before=self._limits.before_retry,
            reraise=True,
        )
        fields = {"task": task.model_dump(mode="json"), "result": result}
        environ = service_environment(services)
        if changes is not None:
            fields["diff"] = changes.diff
            environ["LTRAIN_WORKSPACE"] = str(changes.folder)
        try:
            return retrying(self._call, json.dumps(fields), environ)
        except TimeoutError as error:
            raise RewardFailed(
                f"The reward command has not ended after {self._timeout:g} s on task '{task.id}'. "
                "Raise reward_timeout under [rollout] in the recipe (--reward-timeout)."
            ) from error
        except ERRORS as error:
            raise RewardFailed(
                f"The reward command failed on task '{task.id}': {error}. The last line that it "
                "prints must be a JSON number, or an object of numbers."
            ) from error

    def close(self) -> None:
        """End the commands that run."""
        self._children.stop()

    def _call(self, text: str, environ: Mapping[str, str]) -> dict[str, float]:
        with TemporaryDirectory(prefix="ltrain-reward-") as scratch:
            folder = Path(scratch)
            judged, printed = folder / "input.json", folder / "output"
            judged.write_text(text)
            shell = ["/bin/sh", "-c", _SHELL_SCRIPT, "sh"]
            command = Command(
                argv=[*shell, str(judged), str(printed), self._command],
                env={**dict.fromkeys(secret_variables()), **environ},
                log=folder / "log",
                cwd=self._folder,
                grace=KILL_GRACE,
            )
            child = self._children.start("reward command", command)
            try:
                status = child.wait(self._timeout)
            finally:
                child.stop()
            if status != 0:
                raise ValueError(f"it ended with status {status}: {child.tail(1) or 'no output'}")
            return parse_values(parse_json(last_line(printed)))


def _is_worth_another_try(error: BaseException) -> bool:
    return isinstance(error, ERRORS) and not isinstance(error, TimeoutError)
