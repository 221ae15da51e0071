"""`verifiers:TASKSET`: an environment of verifiers 0.4, with its tasksets, harnesses and scores.

- One environment, with its interception server and its tool servers, serves a worker process.
- An attempt is one episode. Each seat's calls name the seat in the header `x-ltrain-agent`; a judge
  or a simulated user without a model of its own calls the policy, too, under the seat's name.
- An attempt has clients of its own, with its key and the connections of the process. verifiers
  keeps one client for each name of a key variable, so attempts that shared a name would send the
  first one's key.
- verifiers retries nothing: the runner does, and knows an outage of the model from its failure.
"""

import asyncio
import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, islice
from typing import Any

import verifiers.v1 as vf
from pydantic import ValidationError
from verifiers.v1.clients import EvalClient
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.utils.loaders import load_environment, resolve_env_config
from verifiers.v1.utils.prime import ensure_prime_auth

from ltrain_episodes.environment import BadEnvironment
from ltrain_episodes.environments.task_environment import Scores, Task, task_id
from ltrain_instrument.identity import AGENT_HEADER

ONE_SERVER = {"type": "server"}
"""All attempts of a worker share an interception server, so their clients are in one place."""
LOCAL = {"type": "subprocess"}
"""The runtime of a seat that names none. verifiers' own default is Prime's sandbox, which ends the
process of whoever is not logged in."""


class Verifiers:
    """An environment of verifiers.

    Args:
        name: the taskset: a module that exports its class in `__all__`.
        select: which tasks, as `verifiers.v1.SelectConfig` has it.
        options: an `EnvConfig`: `taskset`, the seats (`agent`, of several by name), `id`, ...
    """

    def __init__(
        self, name: str, *, select: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        try:
            self._select = vf.SelectConfig.model_validate(select or {})
            self._env = _load(name, options)
        except ValidationError as error:
            raise BadEnvironment(f"verifiers refuses the options of '{name}': {error}") from error
        except (ImportError, AttributeError, TypeError) as error:
            raise BadEnvironment(f"verifiers cannot load '{name}': {error}") from error
        self._opening = asyncio.Lock()
        self._serving: Any = None
        self._attempts = count()
        self._connections: EvalClient | None = None

    @property
    def agents(self) -> Sequence[str]:
        """The seats that the environment trains."""
        seats = self._env._episode_agents(_context("", "policy", ""), [], None, None)
        asyncio.run(self._env.setup(seats))
        names = agent_config_fields(self._env.config)
        return [name for name in names if getattr(seats, name).trainable]

    def tasks(self, limit: int | None) -> Iterator[Task]:
        taskset = self._env.taskset.select(self._select)
        if limit is None and not taskset.bounded:
            raise BadEnvironment(
                f"The taskset '{self._env.config.taskset.id}' has tasks without end. Set "
                "`max_tasks` in [rollout], or `select` in [rollout.options]."
            )
        for task in islice(taskset, limit):
            data = task.data.model_dump(mode="json", exclude_none=True)
            yield {"id": _key(task), "input": task.data.prompt_text, "data": data}

    async def attempt(self, task: Task, llm: Any) -> Scores:
        await self._open()
        kind = type(self._env.taskset).task_type()
        data = kind.data_type().model_validate(task["data"])
        played = kind(data, self._env.config.taskset.task)
        with self._clients(llm) as (env, context):
            return _scores(await env.run_episode(played, context))

    async def _open(self) -> None:
        async with self._opening:
            if self._serving is None:
                serving = self._env.serving()  # until the worker ends
                await serving.__aenter__()
                self._serving = serving

    @contextmanager
    def _clients(self, llm: Any) -> Iterator[tuple[vf.Env[Any], vf.ModelContext]]:
        """Yield the environment and the model of one attempt; its seats have its key."""
        number, env = next(self._attempts), copy.copy(self._env)
        context = _context(llm.base_url, llm.model, f"LTRAIN_ATTEMPT_{number}_API_KEY")
        seats, made = {}, {}
        for name, seat in agent_config_fields(env.config).items():
            if seat.client is None:  # else it has a model of its own
                client = context.client.model_copy(update={"headers": {AGENT_HEADER: name}})
                seats[name] = seat.model_copy(update={"client": client})
                made[client.model_dump_json()] = self._client_of(llm, name)
        env.config = env.config.model_copy(update=seats)
        known = env._interception.clients
        known |= made
        try:
            yield env, context
        finally:
            for key in made:
                del known[key]

    def _client_of(self, llm: Any, seat: str) -> EvalClient:
        """Return a client with the attempt's key, which shares the connections of the process."""
        if self._connections is None:
            self._connections = EvalClient(vf.EvalClientConfig(api_key_var="", base_url=""))
        client = copy.copy(self._connections)
        client.base_url, client.api_key = llm.base_url, llm.api_key
        client.headers = {AGENT_HEADER: seat}
        return client


def _load(name: str, options: Mapping[str, Any]) -> vf.Env[Any]:
    taskset = {**options.get("taskset", {}), "id": name}
    fields = {"interception": ONE_SERVER, **options, "taskset": taskset}
    config = resolve_env_config(fields)
    for seat, spec in agent_config_fields(config).items():
        if "runtime" not in spec.model_fields_set:
            fields[seat] = {**options.get(seat, {}), "runtime": LOCAL}
    config = resolve_env_config(fields)
    if any(seat.runtime.type == "prime" for seat in agent_config_fields(config).values()):
        _require_login()
    retried = [config, *agent_config_fields(config).values()]
    if any(each.retries.max_retries for each in retried):
        raise BadEnvironment(
            "verifiers would repeat a failed episode inside an attempt. Remove `retries` from "
            "[rollout.options]: ltrain tries a rollout again."
        )
    return load_environment(config)


def _require_login() -> None:
    try:
        ensure_prime_auth()
    except SystemExit as error:  # it would end the worker in the middle of an attempt
        raise BadEnvironment(
            f"The runtime `prime` needs a login: {error}. Or name another `runtime`, such as "
            '`type = "docker"`.'
        ) from error


def _context(base_url: str, model: str, variable: str) -> vf.ModelContext:
    client = vf.EvalClientConfig(base_url=base_url, api_key_var=variable)
    return vf.ModelContext(model=model, client=client, sampling=vf.SamplingConfig())


def _key(task: vf.Task[Any]) -> str:
    """Return the task's own key, else a digest of its data without its position."""
    if type(task).key is not vf.Task.key:
        return str(task.key)
    return task_id(task.data.model_dump_json(exclude={"idx"}, exclude_none=True))


def _scores(episode: vf.Episode[Any, Any, Any]) -> Scores:
    """Return the scores of the trained agents of an episode.

    Raises:
        BadEnvironment: when the episode failed; the message has verifiers' error.
    """
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if not episode.ok:
        reasons = "; ".join(f"{error.type}: {error.message}" for error in errors[-2:])
        raise BadEnvironment(f"The episode failed: {reasons or 'verifiers has no reason'}")
    trained = [trace for trace in episode.traces if trace.agent.trainable]
    many = len({trace.agent.name for trace in trained}) > 1
    rewards, weights, metrics = dict[str, float](), dict[str, float](), dict[str, float]()
    for trace in trained:
        head = f"{trace.agent.name}." if many else ""
        for name, reward in trace.rewards.items():
            rewards[head + name] = rewards.get(head + name, 0.0) + reward.score
            weights[head + name] = reward.weight
        metrics |= {head + name: float(value) for name, value in trace.metrics.items()}
    return Scores(rewards, weights, metrics)
