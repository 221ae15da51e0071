"""`ltrain apo`: starts what a search for a better prompt needs, runs it, and prints its result."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind
from rich.console import Console

from ltrain_instrument import attributes, settings
from ltrain_instrument.identity import Identity
from ltrain_instrument.tokens import CallSpan
from ltrain_train.errors import BadRun
from ltrain_train.policy import Policies
from ltrain_train.processes import RunLock
from ltrain_train.prompts.critic import PromptCritic
from ltrain_train.prompts.optimizer import PromptOptimizer
from ltrain_train.prompts.prompt_waves import PromptWaves
from ltrain_train.prompts.proposal_log import ProposalLog
from ltrain_train.rollout import ChatModel, RewardLimits, import_program, load_tasks
from ltrain_train.runs import (
    Journal,
    Plan,
    RunEnvironment,
    Wave,
    WaveRows,
    hold_lock,
    load_held_out,
    open_journal,
    test_scores,
)
from ltrain_train.store import require_own_store
from ltrain_transforms.recipe import CriticModel, PromptSearch, Recipe


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """A recipe with a [prompt] section, and what it names."""

    plan: Plan
    search: PromptSearch
    critic: CriticModel
    policies: Policies

    @classmethod
    def load(cls, path: Path) -> "SearchPlan":
        """Read and check a recipe."""
        recipe = Recipe.load(path)
        critic, search = recipe.critic_model, recipe.prompt
        assert search is not None, "a recipe with a critic has the section"
        plan = Plan(recipe=recipe, folder=path.parent, home=settings.HOME.read())
        policies = Policies(plan.home)
        if not policies.versions(search.policy):
            raise BadRun(
                f"[prompt] policy = '{search.policy}' has no version. Add the prompt to start from:"
                f" `ltrain policy add {search.policy} prompt.txt`."
            )
        artifact = policies.read_version(search.policy, policies.current(search.policy)).artifact
        if artifact != "prompt":
            raise BadRun(
                f"[prompt] policy = '{search.policy}' is a policy of {artifact}, and `ltrain apo` "
                "optimizes prompts; `ltrain run` trains weights. Name a policy that `ltrain policy "
                "add NAME prompt.txt` made."
            )
        policies.current(plan.policy)  # the model that answers
        return cls(plan, search, critic, policies)

    @property
    def name(self) -> str:
        """Name of the run; `ltrain run` of the same recipe has another one."""
        return f"{self.plan.name}-{self.search.policy}"


def optimize_prompt(path: Path) -> None:
    """Optimize the prompt of a recipe; a killed search continues where it stopped.

    Raises:
        RunInUse: when another process works on the run or the prompt's policy.
        LtrainError: when the recipe, the agent, the critic or a service cannot be used.
    """
    found = SearchPlan.load(path)
    require_own_store(found.plan.home)
    after = "the same command continues from here"
    with hold_lock(found.plan.home, found.name, (found.search.policy,), after) as lock:
        journal, best = _search(found, lock)
    for line in _result_lines(found, journal, best):
        _console().print(line)


def _search(found: SearchPlan, lock: RunLock) -> tuple[Journal, int]:
    plan, search = found.plan, found.search
    tasks = load_tasks(plan.folder / plan.rollout.tasks)
    held_out = load_held_out(plan.folder, plan.rollout, tasks)
    import_program(plan.program, plan.home, chain(tasks, *held_out.values()))
    journal = _open_journal(found)
    services = plan.services(lock)
    with (
        journal.working(None),
        RunEnvironment(journal.run, plan.program, services) as environment,
        lock.working(),
    ):
        environment.check_leases(journal, plan.recipe.source.trust)
        limits = RewardLimits()
        model = environment.enter_context(closing(ChatModel("The critic", found.critic, limits)))
        _console().print(_describe_start(found, journal))
        services.start()
        environment.open()
        environment.gateway.require_running()
        provider = environment.open_provider("ltrain-apo")
        log = ProposalLog(journal.folder)
        start_call = partial(
            CallSpan,
            provider.get_tracer(attributes.SCOPE_RUNNER),
            Context(),
            SpanKind.CLIENT,
            identity=Identity(run=journal.run).attributes(),
        )
        waves = environment.waves(plan.recipe, journal, search.samples)
        on_wave = partial(_print_wave, WaveRows(plan.recipe))
        optimizer = PromptOptimizer(
            search=search,
            seed=plan.rollout.seed,
            waves=PromptWaves(waves, search.policy, on_wave),
            critic=PromptCritic(found.critic, model, log, start_call),
            log=log,
            policies=found.policies,
            tasks=tasks,
            held_out=held_out,
            notify=_console().print,
        )
        return journal, optimizer.run()


def _open_journal(found: SearchPlan) -> Journal:
    name, policies = found.search.policy, found.policies
    current = policies.read_version(name, policies.current(name))
    runs, recipe = found.plan.home / "runs", found.plan.recipe
    return open_journal(runs, found.name, recipe=recipe.digest, updates=0, current=[current])


def _describe_start(found: SearchPlan, journal: Journal) -> str:
    search, base = found.search, journal.policies[found.search.policy]
    begins = "goes on" if journal.waves else "starts"
    return (
        f"Run {journal.run} {begins} from {search.policy}@{base}: {search.rounds} "
        f"rounds, beam of {search.beam_width}; critic {found.critic.model}, answers by "
        f"{found.plan.policy}."
    )


def _result_lines(found: SearchPlan, journal: Journal, best: int) -> Iterator[str]:
    name = found.search.policy
    base = journal.policies[name]
    scores = {w.version: w.score or 0.0 for w in journal.waves if w.mode == "val"}
    first = f"{name}@{base}"
    if best == base:
        yield f"No prompt is better than {first}, {scores[best]:.3f} on held-out tasks."
    else:
        yield (
            f"{name}@{best} is current: {scores[best]:.3f} on held-out tasks, {first} "
            f"{scores[base]:.3f}."
        )
    yield from test_scores(journal)
    yield "Next:"
    yield f"  ltrain policy list {name}"
    yield f"  ltrain show run:{journal.run}"


def _print_wave(rows: WaveRows, wave: Wave) -> None:
    """Print a validation or a test; one sentence reports the waves of a selection."""
    if wave.mode != "train":
        for line in rows.lines(wave):
            _console().print(line)


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
