"""Optimizes a prompt: rounds of critique, edits and selection, as ProTeGi's beam search.

The search is Pryzant et al. 2023, "Automatic Prompt Optimization with 'Gradient Descent' and Beam
Search" (arXiv 2305.03495), with sequential halving as its selection. Each round:

1. Each prompt of the beam performs a minibatch of training tasks. The critic names reasons for the
   lowest scores, edits the prompt against each, and paraphrases the edits.
2. The edits compete with the beam on training tasks; the best `beam_width` are the next beam.
3. The best one is validated on the held-out tasks. At the end the prompt with the highest
   validation score becomes current.

The first prompt and the last one are also scored on the test tasks, if there are some.

A continued run repeats the same steps from the start: waves come from the journal, the critic's
answers from the log, and candidates are the versions with their texts.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import ceil, log2
from random import Random

from ltrain_instrument.identity import Mode
from ltrain_instrument.prompts import Prompt
from ltrain_instrument.quantity import quantity
from ltrain_train.policy import Policies, read_prompt_version, register_prompt
from ltrain_train.prompts.critic import PromptCritic
from ltrain_train.prompts.edit_check import Drop, extract_prompt, find_drop
from ltrain_train.prompts.prompt_waves import PromptWave, PromptWaves
from ltrain_train.prompts.proposal_log import ProposalLog
from ltrain_train.rollout import Task
from ltrain_train.runs import Finished, Served
from ltrain_transforms.recipe import PromptSearch


@dataclass(slots=True, kw_only=True)
class PromptOptimizer:
    """The search of one run."""

    search: PromptSearch
    seed: int
    waves: PromptWaves
    critic: PromptCritic
    log: ProposalLog
    policies: Policies
    tasks: Sequence[Task]
    held_out: Mapping[Mode, Sequence[Task]]
    """The tasks of validations and of tests."""
    notify: Callable[[str], None]
    """Called with a sentence about each round."""
    _scores: dict[int, float] = field(default_factory=dict)
    """Validation scores by version."""
    _texts: set[str] = field(default_factory=set)
    _numbers: Iterator[int] = field(default_factory=count)
    """Numbers of the training waves."""

    def run(self) -> int:
        """Return the version with the highest validation score, after making it current."""
        name, journal = self.search.policy, self.waves.journal
        base = read_prompt_version(self.policies, name, journal.policies[name])
        self._texts.add(base)
        self._validate(0, base)
        self._test(0, base)
        beam = [base]
        for number in range(1, self.search.rounds + 1):
            candidates = self._propose(number, beam)
            if candidates:
                beam = self._select(number, [*beam, *candidates])
                self._validate(number, beam[0])
            self._describe(number, beam[0], len(candidates))
        best = max(self._scores, key=lambda version: (self._scores[version], -version))
        self.policies.promote(name, best)
        if best != base.version:
            journal.add(Served(policy=name, version=best))
            self._test(1, read_prompt_version(self.policies, name, best))
        journal.add(Finished())
        return best

    def _validate(self, number: int, prompt: Prompt) -> None:
        """Score a prompt on the held-out tasks, unless it was scored in an earlier round."""
        if prompt.version in self._scores:
            return
        wave = PromptWave("val", number, prompt, self.held_out["val"])
        (evaluated,) = self.waves.run([wave])
        self._scores[wave.version] = evaluated.score or 0.0

    def _test(self, number: int, prompt: Prompt) -> None:
        """Score a prompt on the test tasks, which decide nothing."""
        if tasks := self.held_out["test"]:
            self.waves.run([PromptWave("test", number, prompt, tasks)])

    def _propose(self, number: int, beam: Sequence[Prompt]) -> list[Prompt]:
        """Return the candidates that the critic makes from the prompts of the beam."""
        order = Random(f"{self.seed} minibatch {number}")
        tasks = order.sample(list(self.tasks), min(self.search.minibatch, len(self.tasks)))
        waves = [PromptWave("train", next(self._numbers), prompt, tasks) for prompt in beam]
        self.waves.run(waves)
        names = ", ".join(f"{self.search.policy}@{prompt.version}" for prompt in beam)
        self.notify(
            f"Round {number}: the critic edits {names} after {quantity(len(tasks), 'task')}."
        )
        return [candidate for wave in waves for candidate in self._edits(number, wave)]

    def _edits(self, number: int, wave: PromptWave) -> Iterator[Prompt]:
        parent, search = wave.prompt, self.search
        examples = self.waves.examples(wave, search.examples)
        critiques: list[str] = []
        for gradient in range(1, search.gradients + 1):
            key = f"round {number}, v{wave.version}, gradient {gradient}"
            critique = self.critic.criticise(key, parent, examples, critiques)
            if not critique:
                self._drop(key, parent, Drop.NO_ANSWER, "")
                continue
            edits: list[str] = []
            for edit in range(1, search.edits + 1):
                edit_key = f"{key}, edit {edit}"
                answer = self.critic.edit(edit_key, parent, examples, critique, edits)
                accepted = self._accept(edit_key, parent, answer, critique)
                if accepted is None:
                    continue
                edits.append(accepted)
                yield accepted
                yield from self._paraphrases(edit_key, parent, accepted, critique)
            critiques.append(critique)

    def _paraphrases(
        self, key: str, parent: Prompt, edit: Prompt, critique: str
    ) -> Iterator[Prompt]:
        earlier: list[str] = []
        for paraphrase in range(1, self.search.paraphrases + 1):
            paraphrase_key = f"{key}, paraphrase {paraphrase}"
            answer = self.critic.paraphrase(paraphrase_key, edit, earlier)
            accepted = self._accept(paraphrase_key, parent, answer, critique)
            if accepted is not None:
                earlier.append(accepted)
                yield accepted

    def _accept(self, key: str, parent: Prompt, answer: str, critique: str) -> Prompt | None:
        """Return the candidate in an answer as a version; None if it is dropped."""
        text = extract_prompt(answer)
        drop = find_drop(text, parent, self._texts) if answer else Drop.NO_ANSWER
        if drop is not None or text is None:
            self._drop(key, parent, drop or Drop.NO_PROMPT, critique)
            return None
        name, recipe = self.search.policy, self.waves.journal.recipe
        version = register_prompt(
            self.policies, name, text, parent=parent.version or 0, recipe=recipe
        )
        self._texts.add(text)
        self.log.add(f"{key}, candidate", version=version, parent=parent.version, critique=critique)
        return Prompt(text, version)

    def _drop(self, key: str, parent: Prompt, drop: Drop, critique: str) -> None:
        fields = {"parent": parent.version, "critique": critique}
        self.log.add(f"{key}, candidate", dropped=drop.value, **fields)

    def _select(self, number: int, candidates: Sequence[Prompt]) -> list[Prompt]:
        """Return the next beam, the best prompt first, by sequential halving on training tasks."""
        tasks = Random(f"{self.seed} selection {number}").sample(list(self.tasks), len(self.tasks))
        prompts = {prompt.version or 0: prompt for prompt in candidates}

        def perform(versions: list[int], places: range) -> dict[int, list[float]]:
            batch = [tasks[place] for place in places]
            numbers = [next(self._numbers) for _ in versions]
            waves = [
                PromptWave("train", wave, prompts[version], batch)
                for wave, version in zip(numbers, versions, strict=True)
            ]
            evaluated = zip(waves, self.waves.run(waves), strict=True)
            return {wave.version: list(each.tasks.values()) for wave, each in evaluated}

        search = self.search
        best = select(
            list(prompts), len(tasks), search.beam_width, search.selection_budget, perform
        )
        return [prompts[version] for version in best]

    def _describe(self, number: int, best: Prompt, candidates: int) -> None:
        prefix = f"round {number},"
        drops = Counter(
            str(record["dropped"]) for record in self.log.starting(prefix) if "dropped" in record
        )
        reasons = ", ".join(f"{amount} {name}" for name, amount in sorted(drops.items()))
        dropped = f" and {drops.total()} dropped ({reasons})" if drops else ""
        score = self._scores.get(best.version or 0)
        result = f" Best: {self.search.policy}@{best.version}"
        result += "." if score is None else f", {score:.3f} on held-out tasks."
        self.notify(f"Round {number}: {candidates} candidates{dropped}.{result}")


def phases(candidates: int, keep: int) -> int:
    """Return the number of phases that halve `candidates` to `keep`: ceil(log2(n / k)), at least 1.

    With no more candidates than are kept there is nothing to select: 0.
    """
    return max(1, ceil(log2(candidates / keep))) if candidates > keep else 0


def phase_tasks(budget: int, candidates: int, all_phases: int) -> int:
    """Return the tasks that each candidate of a phase performs: t = floor(B / (n P)), at least 1.

    Sequential halving (Karnin et al. 2013, "Almost Optimal Exploration in Multi-Armed Bandits")
    with B the budget of tasks of all phases, n the candidates of the phase and P the phases.
    """
    return max(1, budget // (candidates * all_phases))


def survivors(scores: Mapping[int, Sequence[float]], keep: int) -> list[int]:
    """Return the better half of the candidates, but at least `keep`, the best first.

    |S'| = max(k, ceil(|S| / 2)), by the mean of all scores of a candidate so far; candidates of
    equal means are ordered by their number, so the older one is kept.
    """
    ranked = sorted(scores, key=lambda each: (-sum(scores[each]) / len(scores[each]), each))
    return ranked[: max(keep, ceil(len(ranked) / 2))]


def select(
    candidates: Sequence[int],
    tasks: int,
    keep: int,
    budget: int,
    perform: Callable[[list[int], range], Mapping[int, Sequence[float]]],
) -> list[int]:
    """Return the `keep` best candidates, the best first.

    Args:
        candidates: their numbers; those that are not more than are kept are only ordered.
        tasks: number of tasks; each candidate performs the same ones, and none twice.
        budget: tasks that all candidates perform together.
        perform: returns the scores of candidates on tasks, which it gets by their places.
    """
    scores: dict[int, list[float]] = {each: [] for each in candidates}
    count, start = max(1, phases(len(candidates), keep)), 0
    for _ in range(count):
        end = min(tasks, start + phase_tasks(budget, len(scores), count))
        if start < end:
            for each, values in perform(list(scores), range(start, end)).items():
                scores[each] += values
        start = end
        scores = {each: scores[each] for each in survivors(scores, keep)}
    return list(scores)[:keep]
