"""The checks of `ltrain check`: faults of a recipe that a run would meet after its models loaded.

No weight is loaded and no service is started. The agent runs once, on the first task, with a
scripted model; the reward judges its result and three odd results.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ltrain_instrument import settings
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.instrumentors import Finding, State
from ltrain_instrument.machine import LOOPBACK_NAMES
from ltrain_instrument.quantity import quantity
from ltrain_train.errors import BadRun
from ltrain_train.gateway import GatewayClient, ScriptedModel, TinkerOptions
from ltrain_train.policy import (
    NO_TEMPLATE,
    NO_TOOLS,
    Policies,
    check_artifact,
    has_chat_template,
    renders_tools,
)
from ltrain_train.processes import free_bytes, is_port_open
from ltrain_train.rollout import (
    RewardFailed,
    Task,
    Trial,
    check_sandboxes,
    load_tasks,
    score_results,
)
from ltrain_train.runs.held_out import count_leaks
from ltrain_train.runs.plan import Plan, find_chat_template, make_plan
from ltrain_train.runs.resources import check_resources
from ltrain_train.runs.services import RequiredService, Services, responds
from ltrain_train.schedule import check_domains
from ltrain_train.store import home_secret, require_own_store
from ltrain_train.workers import AttemptResult, Outcome
from ltrain_transforms.recipe import Policy
from ltrain_transforms.starter import find_family

ANSWER = "Hello! How can I help you?"
"""The scripted model's answer to each call."""
IMPORT_TIMEOUT = 30.0
"""Seconds in which the agent is imported."""
CALL_TIMEOUT = 10.0
"""Seconds in which the agent and the reward return."""
ODD_RESULTS: dict[str, Any] = {"None": None, "''": "", "a long text": "word " * 20_000}
"""Results that an agent returns sometimes, by their description."""
OWN = "the agent's result"
"""The description of the result that the agent returned."""
MIN_FREE = 2 << 30
"""Bytes of the home's disk that a run needs besides the weights."""
SHOWN = 120
"""Characters of a result that a line shows."""


def check_recipe(path: Path, model: Path | None = None) -> list[Finding]:
    """Return the findings on a recipe, its program, its models and this machine.

    Args:
        path: the file of the recipe.
        model: model directory of new policies, as `ltrain run --model` has it.
    """
    try:
        plan = make_plan(path, model=model, updates=None)
    except (LtrainError, OSError) as error:
        return [_fault("recipe", error)]
    found = [Finding("recipe", State.OK, f"{path} is valid")]
    has_tools = False
    if plan.recipe.rollout is not None:
        tasks, about_tasks = _check_tasks(plan)
        program = _ProgramCheck(plan)
        found += [*about_tasks, *(program.findings(tasks) if tasks else ())]
        has_tools = program.has_tools
    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("model", lambda: _check_models(plan, has_tools=has_tools)),
        ("tinker", lambda: _check_tinker(plan)),
        ("services", lambda: _check_services(plan)),
        ("disk", lambda: _check_disk(plan)),
    ]
    for name, check in checks:
        try:
            found += check()
        except (LtrainError, OSError) as error:
            found.append(_fault(name, error))
    return found


def _fault(name: str, error: Exception | str) -> Finding:
    return _finding(name, State.FAULT, str(error))


def _finding(name: str, state: State, text: str) -> Finding:
    """Return the finding of a text whose first sentence is the problem, and the rest its fix."""
    problem, _, fix = text.partition(". ")
    return Finding(name, state, problem, fix)


def _check_tasks(plan: Plan) -> tuple[list[Task], list[Finding]]:
    """Return all tasks, those of training first, and the findings on the task files."""
    rollout, tasks = plan.rollout, list[Task]()
    try:
        tasks = load_tasks(plan.folder / rollout.tasks)
        check_domains(tasks, rollout.domains)
        found = [Finding("tasks", State.OK, f"{rollout.tasks} has {quantity(len(tasks), 'task')}")]
        files = {"validation": rollout.validation, "test": rollout.test}
        held_out = {key: load_tasks(plan.folder / file) for key, file in files.items() if file}
        found += [_describe_held_out(key, files[key], held_out[key], tasks) for key in held_out]
        tasks = [*tasks, *chain.from_iterable(held_out.values())]
    except LtrainError as error:
        return tasks, [_fault("tasks", error)]
    if not held_out:
        problem = "there are no held-out tasks: no score tells whether the policy became better"
        fix = "Move some tasks to another file, and set rollout.validation to it."
        found.append(Finding("tasks", State.NOTE, problem, fix))
    return tasks, found


def _describe_held_out(
    key: str, file: str | None, tasks: list[Task], training: list[Task]
) -> Finding:
    if leaks := count_leaks(tasks, training):
        problem = f"{leaks} of the {len(tasks)} tasks in rollout.{key} are also in rollout.tasks"
        return Finding(key, State.NOTE, problem, "Remove them from one of the two files.")
    text = f"{quantity(len(tasks), 'task')} in {file}, none of them trained on"
    return Finding(key, State.OK, text)


class _ProgramCheck:
    """Runs the program of a plan on its first task."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._program = plan, plan.program
        self._result: Any = None
        self.has_tools = False
        """Whether the agent sent tools to the model."""

    def findings(self, tasks: Sequence[Task]) -> Iterator[Finding]:
        """Yield the findings on the sandboxes of all tasks, on the agent and on the reward."""
        try:
            check_sandboxes(self._program, tasks)
        except LtrainError as error:
            yield _fault("sandbox", error)
            return
        for name, check in (("agent", self._check_agent), ("reward", self._check_reward)):
            try:
                yield from check(tasks[0])
            except (LtrainError, OSError) as error:
                yield _fault(name, error)

    def _check_agent(self, task: Task) -> Iterator[Finding]:
        program = self._program
        if program.agent is None:
            problem = "workers on other machines have the agent, which is not run here"
            yield Finding("agent", State.NOTE, problem, "Start them with `ltrain worker`.")
            return
        model = ScriptedModel(ANSWER, program.allow, program.constrained)
        with model, Trial(program, self._plan.home) as trial:
            trial.import_agent(IMPORT_TIMEOUT)
            if program.services:
                problem = f"{program.agent} is imported; it is not run without its services"
                yield Finding("agent", State.NOTE, problem)
                return
            # an environment imports its package in its first attempt
            own = self._plan.rollout.environment is None
            timeout = min(CALL_TIMEOUT, program.timeout) if own else program.timeout
            result = trial.run(task, model.url, self._plan.policy, timeout)
        self._result = result.output
        self.has_tools = any(call.has_tools for call in model.calls)
        yield self._describe_end(task, result, model)
        for sentence in dict.fromkeys(fault for call in model.calls for fault in call.faults):
            yield _fault("calls", sentence)
        for sentence in dict.fromkeys(text for call in model.calls for text in call.corrections):
            yield _finding("calls", State.NOTE, sentence)

    def _describe_end(self, task: Task, result: AttemptResult, model: ScriptedModel) -> Finding:
        """Return how the agent ended; a fault if the scripted answer cannot be its cause."""
        counts = Counter(call.path for call in model.calls)
        sent = ", ".join(f"{quantity(count, 'call')} to {path}" for path, count in counts.items())
        about = f"{self._program.agent} on task '{task.id}'"
        if result.outcome is Outcome.OK and sent:
            shown = repr(result.output)
            end = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"
            return Finding("agent", State.OK, f"{about} sent {sent} and returned {end}")
        if result.outcome is Outcome.OK:
            fix = "Its calls must go to llm.base_url (a command: OPENAI_BASE_URL)."
            return Finding("agent", State.NOTE, f"{about} sent no call to the model", fix)
        is_result = result.reason.startswith("The agent's result must be JSON")
        state = State.FAULT if is_result or not sent else State.NOTE
        fix = f"The model's answer was: {ANSWER}" if sent and not is_result else ""
        return Finding(
            "agent", state, f"{about} sent {sent or 'no call'}, then: {result.reason}", fix
        )

    def _check_reward(self, task: Task) -> Iterator[Finding]:
        if self._program.reward is None:
            judges = ", ".join(self._program.judges) or "none"
            yield Finding("reward", State.OK, f"judges: {judges}; they are not called")
            return
        results = {OWN: self._result} if self._result is not None else {}
        if self._plan.rollout.environment is None:
            results |= ODD_RESULTS
        scores = score_results(self._program, task, list(results.values()), CALL_TIMEOUT)
        values, failures = list[str](), dict[str, list[str]]()
        for name, score in zip(results, scores, strict=True):
            if isinstance(score, RewardFailed):
                failures.setdefault(str(score), []).append(name)
            else:
                values.append(f"{name}: {_show_values(score)}")
        if values:
            yield Finding("reward", State.OK, "; ".join(values))
        for sentence, names in failures.items():
            is_fault = OWN in names or (OWN in results and not values)
            state = State.FAULT if is_fault else State.NOTE
            yield _finding("reward", state, f"{', '.join(names)}: {sentence}")


def _show_values(values: dict[str, float]) -> str:
    if list(values) == ["reward"]:
        return f"{values['reward']:g}"
    return ", ".join(f"{name} {value:g}" for name, value in values.items()) or "no value"


def _check_models(plan: Plan, *, has_tools: bool) -> Iterator[Finding]:
    """Yield the findings on the weights and the chat template of each policy, and their needs.

    Args:
        has_tools: whether the agent sends tools.
    """
    serve = plan.recipe.serve
    template, models = find_chat_template(serve, plan.folder), dict[str, Path]()
    for policy in plan.recipe.policy:
        directory, source = _find_model(plan, policy)
        models[policy.name] = directory
        if serve.starts_vllm and not has_chat_template(directory, _text(template)):
            yield _fault("model", NO_TEMPLATE.format(f"policy '{policy.name}'"))
        elif has_tools and serve.starts_vllm and not renders_tools(directory, _text(template)):
            yield _finding("model", State.NOTE, NO_TOOLS.format(f"policy '{policy.name}'"))
        else:
            yield Finding("model", State.OK, f"policy '{policy.name}': {source}")
    if has_tools and serve.starts_vllm and serve.tool_parser is None:
        problem = "the agent sends tools, and without serve.tool_parser the model only writes text"
        family = find_family([], directory)
        example = f'"{family.tool_parser}"' if family else 'that of the model, such as "hermes"'
        fix = f"Set serve.tool_parser to {example}."
        yield Finding("tools", State.NOTE, problem, fix)
    yield from check_resources(plan, models)


def _text(template: Path | None) -> str | None:
    return None if template is None else str(template)


def _find_model(plan: Plan, policy: Policy) -> tuple[Path, str]:
    """Return the directory of a policy's weights and its description."""
    policies = Policies(plan.home)
    version = policies.current(policy.name) if policies.versions(policy.name) else None
    if version is not None:
        policies.verify(policy.name, version)
    directory = plan.find_model(policy)
    if directory is None:
        raise BadRun(
            f"Policy '{policy.name}' has no version. Name its model directory with --model DIR, or "
            "as model under [[policy]]."
        )
    if version is not None:
        return directory, f"version {version} in {plan.home}"
    check_artifact(directory, None)
    return directory, f"{directory}, which becomes version 0"


def _check_tinker(plan: Plan) -> Iterator[Finding]:
    """Check the key and the SDK for a Tinker server, and the base model of one that samples."""
    samples, server = plan.recipe.serve.on == "tinker", plan.recipe.train.tinker
    if not samples and plan.recipe.train.backend != "tinker":
        return
    options = TinkerOptions(base_url=server.base_url, base_model=server.base_model)
    options.require()
    where = server.base_url or "Thinking Machines' service"
    if not samples:
        yield Finding("tinker", State.OK, f"there are a key and the SDK for {where}, which trains")
        return
    for policy in plan.recipe.policy:
        directory, _ = _find_model(plan, policy)
        text = f"policy '{policy.name}': {options.find_base_model(directory)} of {where}"
        yield Finding("tinker", State.OK, text)


def _check_services(plan: Plan) -> Iterator[Finding]:
    require_own_store(plan.home)
    with Services(plan.home, policies=plan.served) as services:
        store, gateway = services.required()
    collector = urlsplit(settings.OTLP_ENDPOINT.read())
    is_taken = collector.hostname in LOOPBACK_NAMES and is_port_open(collector.port or 80)
    if is_taken and not responds(store.health, store.answers):
        yield _taken("collector", collector.netloc, settings.OTLP_ENDPOINT.name)
    yield _check_service(store, settings.STORE.name)
    found = _check_service(gateway, settings.GATEWAY.name)
    if found.state is State.OK and responds(gateway.health, gateway.answers):
        plan.beside_gateway(services.gateway_url)
        with closing(GatewayClient(services.gateway_url, home_secret(plan.home))) as client:
            client.call_seconds(plan.policy)  # another home's gateway refuses the key
    yield found


def _check_service(service: RequiredService, variable: str) -> Finding:
    """Return whether a run uses a service that answers, or can start one at its address."""
    name, address = service.name, urlsplit(service.health)
    if responds(service.health, service.answers):
        return Finding(name, State.OK, f"answers at {address.netloc}: the run uses it")
    if address.hostname not in LOOPBACK_NAMES:
        fix = "Start it there: a run starts services on this machine only."
        return Finding(name, State.FAULT, f"no {name} answers at {address.netloc}", fix)
    if is_port_open(address.port or 80):
        return _taken(name, address.netloc, variable)
    return Finding(name, State.OK, f"{address.netloc} is free: the run starts it there")


def _taken(name: str, address: str, variable: str) -> Finding:
    fix = f"Stop it, run `ltrain up --port-base 9000` first, or set {variable} to another address."
    return Finding(name, State.FAULT, f"another program listens at {address}", fix)


def _check_disk(plan: Plan) -> Iterator[Finding]:
    free = free_bytes(plan.home)
    detail = f"{free / 1e9:.1f} GB are free on the disk of {plan.home.absolute()}"
    if free >= MIN_FREE:
        yield Finding("disk", State.OK, detail)
    else:
        fix = "`ltrain policy prune NAME --yes` removes old versions with their checkpoints."
        yield Finding("disk", State.FAULT, detail, fix)
