"""How ltrain runs the agent on tasks."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from ltrain_instrument.allow import Allow
from ltrain_transforms.recipe.section import Section

_SECRET = re.compile(
    r"(?i)(.*[_-])?(api[_-]?key|secret|password|authorization|(access|auth|bearer)[_-]?token)"
)
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*|/.*\.py:[A-Za-z_]\w*")

SANDBOX_KEYS = ("sandbox", "sandbox_command", "image", "workspace", "visible", "limits")
"""The keys of [rollout] that describe the sandbox."""
ENVIRONMENT_KEYS = ("options", "held_out_options", "held_out_share", "max_tasks")
"""The keys of [rollout] that describe the environment."""
ENVIRONMENT_PARTS = {
    "agent": "ltrain_episodes.environments:attempt",
    "reward": "ltrain_episodes.environments:scores",
    "agent_sees": ("input", "environment"),
}
"""The parts of an environment that other keys of [rollout] may replace."""


class SandboxLimits(Section):
    """Limits of one attempt in a sandbox. The sandbox ends an attempt that exceeds one."""

    cpu_seconds: int | None = Field(default=None, ge=1)
    """Seconds of CPU of all its processes together; unset: no limit besides the attempt's time."""
    memory_mib: int = Field(default=2048, ge=64)
    """MiB of memory of all its processes together; one process cannot allocate more than twice as
    many."""
    processes: int = Field(default=256, ge=8)
    """Processes and threads at a time."""
    disk_mib: int = Field(default=1024, ge=1)
    """MiB of workspace and HOME together, and as many of `/tmp`; they are in memory."""


class Rollout(Section):
    """Read only where ltrain runs the agent."""

    environment: str | None = None
    """[An environment of another package](environments.md), which has the tasks, the agent and the
    reward: `PACKAGE:NAME`, or `module:Class` of your own. `tasks`, `agent`, `reward` and
    `agent_sees` may replace its parts."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the environment, which checks them."""
    held_out_options: dict[str, Any] = Field(default_factory=dict)
    """Options that differ for the environment's held-out tasks, such as `{ split = "test" }`;
    empty: a share of its tasks is held out."""
    held_out_share: float = Field(default=0.1, ge=0, lt=1)
    """Share of the environment's tasks that are held out, by their ids."""
    max_tasks: int | None = Field(default=None, ge=1)
    """Most tasks of the environment, and most of its held-out ones; unset: all."""
    tasks: str = ""
    """JSONL file of tasks; a relative path starts at the recipe's folder. Required without an
    environment."""
    validation: str | None = None
    """JSONL file of held-out tasks."""
    test: str | None = None
    """JSONL file of tasks that neither train the policy, nor choose a version, nor end the run:
    an online run scores its first and its last version on them."""
    validation_samples: int = Field(default=1, ge=1)
    """Rollouts of each held-out task in a validation, and of each test task; their mean is its
    score."""
    validation_temperature: float | None = Field(default=None, ge=0)
    """Temperature of validations, tests and `ltrain eval`, whatever the agent requests. Unset: 0,
    greedy; 1 with several `validation_samples`."""
    agent: str | None = None
    """`module:function`, the path of a file as in `/srv/agent.py:solve`, or a command; none with
    `remote`."""
    sandbox: Literal["bubblewrap", "docker", "podman", "command"] | None = None
    """Isolates each attempt of an agent that is a command
    ([Sandboxes](rollouts.md#a-sandbox)); unset: its processes can read what this user can."""
    sandbox_command: str | None = None
    """Command line that runs an attempt elsewhere, for `sandbox = "command"`."""
    image: str | None = None
    """Image with the agent's environment, for `sandbox = "docker"` and `"podman"`."""
    workspace: str | None = None
    """Folder whose copy each attempt in a sandbox gets, at `$LTRAIN_WORKSPACE`; the reward gets the
    changes of the attempt. `{id}`, or another key that the agent sees, is the value of the task, as
    in `"repositories/{id}"`."""
    visible: tuple[str, ...] = ()
    """Files and folders that attempts in a sandbox can read, besides the files of the recipe's
    folder that the command names."""
    limits: SandboxLimits = SandboxLimits()
    remote: bool = False
    """Whether the workers of the gateway (`ltrain worker`) run the agent, which they name."""
    reward: str | None = None
    """`module:function`, a command or a URL: it gets a task and a result, and returns a number, or
    numbers by name; required, unless a judge (`use = "judge"` of a reward) scores the results."""
    rollouts_per_task: int = Field(default=8, ge=1)
    """Rollouts of each task in a wave."""
    tasks_per_wave: int = Field(default=12, ge=1)
    """Tasks in a wave; one wave is one update."""
    refill_tasks: int = Field(default=0, ge=0)
    """Most tasks that a wave runs in addition, to replace groups whose scores are all equal."""
    spare_tasks: int = Field(default=0, ge=0)
    """Tasks that run beside those of a wave: the wave ends without waiting for the slowest groups,
    which go on and end in later waves."""
    release_window: int | None = Field(default=None, ge=1)
    """A group waits for the oldest one that runs if it was drawn so many places after it; unset: as
    many as run at a time. A smaller window trains on fewer quick groups before slow ones."""
    timeout: float = Field(default=60, gt=0)
    """The agent's own seconds in each attempt: in its code and its tools. Seconds in which a model
    call waits at the gateway or in the server do not count."""
    wall_timeout: float | None = Field(default=None, gt=0)
    """All seconds of an attempt; one that reaches them is tried again and never counts, because its
    model was too slow. Unset: `timeout` and twenty minutes."""
    max_calls: int = Field(default=200, ge=1)
    """Answered model calls of an attempt; the gateway refuses further ones with status 400."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens that the policy samples in an attempt; the gateway refuses calls after that with
    status 400. Unset: no limit."""
    reward_timeout: float = Field(default=60, gt=0)
    """Seconds for the reward of one result."""
    reward_concurrency: int = Field(default=8, ge=1)
    """Results that are judged at a time."""
    reward_rate: float | None = Field(default=None, gt=0)
    """Most calls of the reward in a second, repeated ones included; unset: no limit."""
    seed: int = 0
    """Random seed of the order of tasks."""
    domains: dict[str, float] = Field(default_factory=dict)
    """Weight of each domain of the tasks in the waves, such as `{ math = 3, code = 1 }`; 0 leaves a
    domain out, and empty means that domains do not matter."""
    target_score: float | None = None
    """Mean score of the tasks that waves prefer, such as 0.5; unset: each task once an epoch."""
    workers: int = Field(default=2, ge=1)
    """Worker processes."""
    concurrency: int | None = Field(default=None, ge=1)
    """Rollouts at a time in one worker. Unset: 16, and fewer while the model server answers too
    late for the agent."""
    python: str | None = None
    """Python of the environment in which the agent runs, such as `.venv-agent/bin/python`; a
    relative path starts at the recipe's folder. That environment needs the same ltrain, without its
    extras. Unset: ltrain's own Python."""
    agent_sees: tuple[str, ...] = ("input",)
    """Keys of a task that the agent gets, with `id` and `domain`; the reward function gets all."""
    pin_version: bool = False
    """Whether an attempt whose version the server no longer holds is tried again; else its later
    calls are of the current version."""
    allow: tuple[Allow, ...] = ()
    """[Request features](requests.md#allowed-exceptions) that calls in mode `train` may use
    although they make the calls untrainable."""

    @property
    def held_out_temperature(self) -> float:
        """The temperature of rollouts of held-out tasks."""
        if self.validation_temperature is not None:
            return self.validation_temperature
        return 1.0 if self.validation_samples > 1 else 0.0

    @property
    def has_held_out(self) -> bool:
        """Whether there are held-out tasks."""
        return self.validation is not None or self._environment_holds_out

    @property
    def _environment_holds_out(self) -> bool:
        return self.environment is not None and bool(self.held_out_options or self.held_out_share)

    @model_validator(mode="before")
    @classmethod
    def _with_parts(cls, fields: Any) -> Any:
        if not isinstance(fields, dict) or fields.get("environment") is None:
            return fields
        if fields.get("remote"):
            raise ValueError(
                "The agent of an `environment` runs here, and with `remote = true` other machines "
                "run it. Remove one of the two."
            )
        parts = {key: part for key, part in ENVIRONMENT_PARTS.items() if fields.get(key) is None}
        return fields | parts

    @field_validator("options", "held_out_options")
    @classmethod
    def _without_secrets(cls, options: dict[str, Any]) -> dict[str, Any]:
        for key, value in _texts(options):
            if value and _SECRET.fullmatch(key):
                raise ValueError(
                    f"`{key}` has a secret, and recipes are stored with each dataset. Put it in an "
                    "environment variable that the package reads, and remove it here."
                )
        return options

    @model_validator(mode="after")
    def _has_tasks(self) -> Self:
        if self.environment is None:
            self._refuse(ENVIRONMENT_KEYS, "is of an environment. Name it")
            if not self.tasks:
                raise ValueError("Name a JSONL file in `tasks`, or an `environment`.")
        return self

    def _refuse(self, keys: Iterable[str], reason: str) -> None:
        """Raise `ValueError` with the reason if a key has another value than its default."""
        for key in keys:
            default = type(self).model_fields[key].get_default(call_default_factory=True)
            if getattr(self, key) != default:
                raise ValueError(f"`{key}` {reason}, or remove `{key}`.")

    @model_validator(mode="after")
    def _one_agent(self) -> Self:
        if (self.agent is None) != self.remote:
            raise ValueError(
                "Name the agent in `agent`, or set `remote = true` if the workers of the gateway "
                "have it."
            )
        return self

    @model_validator(mode="after")
    def _sandbox_of_command(self) -> Self:
        if self.sandbox is None:
            self._refuse(SANDBOX_KEYS, "needs a sandbox. Set `sandbox`")
        elif self.agent is None:
            raise ValueError(
                "`sandbox` is for commands that run here, and with `remote = true` other machines "
                "run the agent. Remove one of the two."
            )
        elif _FUNCTION.fullmatch(self.agent.strip()):
            raise ValueError(
                f"The agent '{self.agent}' is a function, and functions share the memory of a "
                "worker, so none of them can have a sandbox. Write it as a command, as in "
                "`python agent.py`, or remove `sandbox`."
            )
        return self._with_sandbox_keys()

    def _with_sandbox_keys(self) -> Self:
        known = ("id", "domain", *self.agent_sees)
        for key in re.findall(r"\{(.*?)\}", self.workspace or ""):
            if key not in known:
                raise ValueError(
                    f"`workspace` has {{{key}}}, and the agent sees the keys {', '.join(known)} of "
                    "a task. Name one of them, or add it to `agent_sees`."
                )
        is_container = self.sandbox in ("docker", "podman")
        for key, is_needed in (
            ("image", is_container),
            ("sandbox_command", self.sandbox == "command"),
        ):
            if is_needed != bool(getattr(self, key)):
                change = f"Set `{key}`" if is_needed else f"Remove `{key}`"
                raise ValueError(f'{change}: `sandbox` is "{self.sandbox}".')
        return self

    @model_validator(mode="after")
    def _wall_after_timeout(self) -> Self:
        if self.wall_timeout is not None and self.wall_timeout < self.timeout:
            raise ValueError(
                f"`wall_timeout` is {self.wall_timeout:g} and `timeout` {self.timeout:g}: the time "
                "of the model's calls comes in addition. Raise `wall_timeout`, or leave it out."
            )
        return self

    @model_validator(mode="after")
    def _spare_or_refill(self) -> Self:
        if self.spare_tasks and self.refill_tasks:
            raise ValueError(
                "`spare_tasks` lets a wave end before all its groups have ended, and `refill_tasks`"
                " needs their scores. Set one of the two."
            )
        size = self.tasks_per_wave + self.spare_tasks + self.refill_tasks
        if self.release_window is not None and self.release_window > size:
            raise ValueError(
                f"`release_window` is {self.release_window}, and at most {size} groups run at a "
                "time. Lower it, or leave it out."
            )
        return self

    @field_validator("domains")
    @classmethod
    def _weighted(cls, domains: dict[str, float]) -> dict[str, float]:
        for name, weight in domains.items():
            if weight < 0:
                raise ValueError(f"Domain '{name}' has the weight {weight}. Weights are 0 or more.")
        if domains and not any(domains.values()):
            raise ValueError("Every domain has the weight 0. Give one a weight above 0.")
        return domains


def _texts(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each text of nested options, with its key."""
    for key, value in options.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Mapping):
                yield from _texts(each)
            elif isinstance(each, str):
                yield key, each
