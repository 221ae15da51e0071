"""Which scores count, in every report, in the list and in a dataset build."""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.otlp import insert_otlp
from tests.transforms.conftest import Attempt, Scene

from ltrain_collector.admin import TraceFilter, read_lines
from ltrain_collector.feedback import Feedback, save_feedback
from ltrain_collector.store import Store
from ltrain_transforms.calls import calls
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.reports import (
    RunTable,
    WaveReference,
    query_waves,
    read_scores,
    task_report,
    wave_report,
)
from ltrain_transforms.rewards import read_evaluations
from ltrain_transforms.source import Selection, read_spans
from ltrain_transforms.traces import sender_roles

SECOND = 1_000_000_000
TRUSTED = sender_roles.trusted_senders(())
SOURCES = {
    "ltrain.runner": "runner",
    "ltrain.person": "person",
    "mine": "agent",
    "ltrain.gateway": "agent",
}
WITHDRAWN = {"gen_ai.evaluation.score.label": "withdrawn"}
JUDGEMENTS: tuple[dict[str, Any], ...] = (
    *({"gen_ai.evaluation.score.value": value} for value in (0.0, 0.25, 1.0, -2.0)),
    {"gen_ai.evaluation.score.value": 0.5, **WITHDRAWN},  # a value is no withdrawal
    {"gen_ai.evaluation.score.value": 1e101},
    {"gen_ai.evaluation.score.value": "nan"},
    {"gen_ai.evaluation.score.label": "good"},
    {"gen_ai.evaluation.explanation": "a note"},
    *(WITHDRAWN, WITHDRAWN),
)
NAMES = ("reward", "style")


@dataclass(frozen=True)
class Counted:
    """The score of one source that counts, and its time."""

    time: int
    source: str
    value: float


def judge(rollout: Attempt, moment: int, by: str, named: bool, judgement: dict[str, Any]) -> None:
    """Emit an evaluation; one that is not `named` is as feedback: it names the rollout alone."""
    rollout.clock = rollout.spans[0].start + moment * SECOND
    more: dict[str, Any] = {"process": "feedback", "trace": f"{rollout.number + 1:032x}"}
    content = {**judgement, "ltrain.rollout.id": rollout.rollout}
    rollout.emit("gen_ai.evaluation.result", by, content, named=named, **({} if named else more))


def judge_at_random(scene: Scene, random: Random) -> None:
    """Add rollouts that several sources judge, judge again and withdraw, in no order of time."""
    for wave, task, sample in product(range(2), ("t1", "t2", "t3"), range(2)):
        rollout = scene.attempt(task, sample, wave=wave)
        rollout.dispatch()
        rollout.llm("write", gateway={"ltrain.policy.version": wave})
        for _ in range(random.randrange(10)):
            by, judgement = random.choice(list(SOURCES)), dict(random.choice(JUDGEMENTS))
            if name := random.choice(("", "reward", "style")):
                judgement["gen_ai.evaluation.name"] = name
            judgement["ltrain.reward.scope"] = random.choice(("rollout", "rollout", "call"))
            named = by != "ltrain.person" and random.random() < 0.7
            for _ in range(random.choice((1, 1, 1, 2))):
                judge(rollout, random.choice((1, 2, 3)), by, named, judgement)
        is_first = (wave, task, sample) == (0, "t1", 0)
        rollout.close("infra" if is_first else random.choice(("ok", "timeout")))


def counted(rollout: Attempt, name: str) -> dict[str, Counted]:
    """Return the scores that count, by source, without a query."""
    marks: dict[str, list[tuple[int, float | None]]] = {}
    for span in rollout.spans:
        own = span.attributes
        if (
            span.name != "gen_ai.evaluation.result"
            or own.get("gen_ai.evaluation.name", "reward") != name
            or own["ltrain.reward.scope"] == "call"
        ):
            continue
        text = own.get("gen_ai.evaluation.score.value")
        if text is None and own.get("gen_ai.evaluation.score.label") == "withdrawn":
            marks.setdefault(SOURCES[span.scope], []).append((span.start, None))
        elif isinstance(text, float) and abs(text) <= 1e100:
            marks.setdefault(SOURCES[span.scope], []).append((span.start, text))
    found = {}
    for source, placed in marks.items():
        last = max(time for time, _ in placed)
        value, *others = {value for time, value in placed if time == last}
        if value is not None and not others:
            found[source] = Counted(last, source, value)
    return found


def last_score(rollout: Attempt, name: str) -> float | None:
    """Return what reports show: the runner's score, else the latest of the others."""
    scores = counted(rollout, name)
    others = sorted(scores.values(), key=lambda one: (one.time, one.source))
    chosen = scores.get("runner") or (others[-1] if others else None)
    return None if chosen is None else chosen.value


def latest_scores(rollout: Attempt) -> dict[str, float]:
    """Return what the list shows: the latest score of each name."""
    latest = {}
    for name in NAMES:
        if found := counted(rollout, name).values():
            latest[name] = max(found, key=lambda one: (one.time, one.source)).value
    return latest


def mean(scene: Scene, wave: int, name: str, source: str) -> float | None:
    """Return the mean over the rollouts of a wave that count; None if no score counts."""
    own = [one for one in scene.attempts if one.identity.wave == wave and outcome(one) != "infra"]
    values = [found[source].value for one in own if source in (found := counted(one, name))]
    return sum(values) / len(own) if values else None


def outcome(rollout: Attempt) -> str:
    return str(rollout.spans[-1].attributes["ltrain.rollout.outcome"])


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (2, 3))]
)
def test_every_report_counts_as_the_build_does(
    scene: Scene, store: Store, recipe: Recipe, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    judge_at_random(scene, random)
    for _ in range(2):  # the spans arrive twice, each time in another order
        insert_otlp(store, scene.request(lambda spans: random.sample(spans, len(spans))))
    rollouts = {one.rollout: one for one in scene.attempts}
    for name in NAMES:
        expected = {rollout: last_score(one, name) for rollout, one in rollouts.items()}
        tasks = [task_report(store, "demo", task, name, TRUSTED) for task in ("t1", "t2", "t3")]
        shown = {row["rollout"]: row["score"] for task in tasks for row in task.data["rollouts"]}
        assert shown == expected
        waves = [wave_report(store, tmp_path, WaveReference("demo", "train", n)) for n in range(2)]
        rows = [row for wave in waves for row in wave.data["scores"] if row["name"] == name]
        judged = {rollout: value for rollout, value in expected.items() if value is not None}
        assert {row["rollout"]: row["score"] for row in rows} == judged
        compared = read_scores(store, "sql@0", "sql@1", "train", name, TRUSTED)
        assert dict(compared.select("rollout", "score").iter_rows()) == {
            rollout: value or 0.0
            for rollout, value in expected.items()
            if outcome(rollouts[rollout]) != "infra"
        }
        unrated = {line.id for line in read_lines(store, TraceFilter(unrated=name), 100)}
        assert unrated == {i for i, one in rollouts.items() if "person" not in counted(one, name)}
    means = {
        (name, source, wave): value
        for name, source, wave in product(NAMES, ("runner", "person", "agent"), range(2))
        if (value := mean(scene, wave, name, source)) is not None
    }
    evaluations = query_waves(store, "demo", TRUSTED).evaluations
    found = evaluations.select("name", "source", "wave", "mean").rows()
    assert {tuple(key): value for *key, value in found} == pytest.approx(means)
    lines = {line.id: line.rewards for line in read_lines(store, TraceFilter(), 100)}
    assert {i: {name: float(value) for name, value in one.items()} for i, one in lines.items()} == {
        i: latest_scores(one) for i, one in rollouts.items()
    }
    spans, _ = read_spans(store, recipe.source, Selection(run="demo"))
    trained, _ = read_evaluations(spans, calls(spans)[0])
    of_build = trained.select("execution_id", "name", "source", "value").rows()
    assert {tuple(key): value for *key, value in of_build} == {
        (one.execution, name, source): score.value
        for one in scene.attempts
        for name in NAMES
        for source, score in counted(one, name).items()
    }


def test_a_score_by_hand_counts_until_it_is_withdrawn(
    scene: Scene, store: Store, tmp_path: Path
) -> None:
    rollouts = [scene.attempt(sample=sample) for sample in range(2)]
    for version, rollout in enumerate(rollouts):
        rollout.dispatch()
        rollout.llm("write", gateway={"ltrain.policy.version": version})
        rollout.close()
    insert_otlp(store, scene.request())

    table = RunTable()

    def rate(**content: Any) -> list[Any]:
        """Return what the pages show after feedback on the first rollout."""
        fields = {"rollout": rollouts[0].rollout, "name": "reward", **content}
        save_feedback(store, Feedback.model_validate(fields), "alice")
        task = task_report(store, "demo", "t1", trust=TRUSTED).data["rollouts"]
        wave = wave_report(store, tmp_path, WaveReference("demo", "train", 0)).data["scores"]
        compared = read_scores(store, "sql@0", "sql@1", "train", "reward", TRUSTED)
        means = query_waves(store, "demo", TRUSTED).evaluations.drop("margin").rows()
        [run] = table.read(store, tmp_path, TRUSTED).rows
        lines = {line.id: line.rewards for line in read_lines(store, TraceFilter(), 10)}
        return [
            {row["rollout"]: row["score"] for row in task}[rollouts[0].rollout],
            [row["score"] for row in wave],
            compared["score"].to_list(),
            means,
            None if run[4] is None else str(run[4]),
            lines[rollouts[0].rollout],
        ]

    place = ("train", 0, "reward", "person")
    nothing: list[Any] = [None, [], [0.0, 0.0], [], None, {}]
    assert rate(comment="a note alone") == nothing
    one = [1.0, [1.0], [1.0, 0.0], [(*place, 0.5)], "by the person 0.500", {"reward": "1"}]
    assert rate(value=1) == one
    half = [0.5, [0.5], [0.5, 0.0], [(*place, 0.25)], "by the person 0.250", {"reward": "0.5"}]
    assert rate(value=0.5) == half
    assert rate(withdrawn=True) == nothing
    assert rate(comment="a note again") == nothing
    assert rate(value=1) == one


def test_an_event_judges_its_call_or_the_rollout(
    scene: Scene, store: Store, recipe: Recipe
) -> None:
    rollout = scene.attempt()
    rollout.dispatch()
    kinds = {"call": "LLM", "tool": "TOOL", "node": "CHAIN", "whole": "LLM"}
    for name, kind in kinds.items():
        judgement: dict[str, Any] = {
            "gen_ai.evaluation.name": name,
            "gen_ai.evaluation.score.value": 0.5,
        }
        if name == "whole":
            judgement["ltrain.reward.scope"] = "rollout"
        own: dict[str, Any] = {
            "openinference.span.kind": kind,
            "llm.model_name": "sql",
            "tool.name": "look",
        }
        events = [("gen_ai.evaluation.result", judgement)]
        rollout.emit(name, "openinference.instrumentation.langchain", own, events=events)
    rollout.close()
    insert_otlp(store, scene.request())
    spans, _ = read_spans(store, recipe.source, Selection(run="demo"))
    trained, _ = read_evaluations(spans, calls(spans)[0])
    of_build = trained.filter(trained["call_id"].is_null())["name"]
    assert set(of_build) == {"node", "whole"}
    assert set(query_waves(store, "demo", TRUSTED).evaluations["name"]) == set(of_build)
