"""Runs that publish their adapter: each version is served as it was trained, in both modes.

The agent uses a service, and a judge scores the results beside the reward function.
"""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import polars as pl
import pytest
from tests.end_to_end.conftest import TRAIN, load

from ltrain_train.policy import Policies
from ltrain_train.runs.journal import Journal

UPDATES = 3
VERDICT = json.dumps({"evidence": "it names a word", "score": 0.25})
ROLLOUTS = "SELECT RolloutId FROM otel.spans WHERE RunId = 'two-turn' AND RolloutId != ''"
"""Rollouts of the first run."""
JUDGE_AND_SERVICE = """
[[reward]]
use = "judge"
name = "quality"
params = {{ rubric = "It names a word.", model = "m" }}

[[serve.route]]
model = "m"
url = "{url}/v1"
key = "JUDGE_KEY"

[[service]]
name = "numbers"
command = "exec python -m http.server $PORT --bind 127.0.0.1 --directory numbers"
health = "/7"
count = 4
"""
AGENT = """
from urllib.request import urlopen

import word_agent

def solve(task, llm):
    result = word_agent.solve(task, llm)
    with urlopen(llm.services["numbers"] + "/7") as answer:
        return result | {"number": answer.read().decode()}
"""


def adapter_recipe(project: Any, judge: str) -> str:
    """Write the recipe with a LoRA adapter that is published as it is; return its name.

    The adapter is held near the base, and the learning rate has a schedule.

    Args:
        judge: URL of the server with the judge's model.
    """
    (project.folder / "numbers").mkdir()
    (project.folder / "numbers" / "7").write_text("seven")
    (project.folder / "service_agent.py").write_text(AGENT)
    text = (project.folder / "ltrain.toml").read_text()
    text = re.sub(r"lora_rank = 0\nupdates = \d+", f"lora_rank = 4\nupdates = {UPDATES}", text)
    text = text.replace("tasks_per_wave = 12", "tasks_per_wave = 4")
    text += 'kl_coefficient = 0.01\nwarmup_updates = 2\ndecay = "linear"\n'
    serve = '[serve]\npublish = "adapter"\nmax_adapters = 2\n'
    text = text.replace("[serve]\n", serve).replace("word_agent:", "service_agent:")
    more = JUDGE_AND_SERVICE.format(url=judge)
    (project.folder / "adapter.toml").write_text(text + more)
    return "adapter.toml"


def overlapping_recipe(project: Any) -> str:
    """Write the same recipe with asynchronous waves that leave slow groups; return its name."""
    text = (project.folder / "adapter.toml").read_text()
    text = text.replace("[train]", '[train]\nmode = "async"')
    text = text.replace("[rollout]", "[rollout]\nspare_tasks = 4")
    (project.folder / "overlapping.toml").write_text(text)
    return "overlapping.toml"


@dataclass(frozen=True)
class Adapters:
    """A run that published its adapters: its project, its waves and the calls of its judge."""

    project: Any
    waves: list[dict[str, Any]]
    judge_calls: list[Any]


@pytest.fixture(scope="module")
def adapters(project: Callable[[str], Any]) -> Iterator[Adapters]:
    """Train with adapters; the judge answers until the tests of this file end."""
    made = project("adapters")
    made.environ["JUDGE_KEY"] = "the key of the judge"
    with load(TRAIN / "rollout" / "outside.py").Outside(rules=[('"result"', VERDICT)]) as judge:
        waves = made.train(adapter_recipe(made, judge.url))
        yield Adapters(made, waves, list(judge.calls))


def test_a_judge_scores_each_rollout_which_used_its_service(adapters: Adapters) -> None:
    rollouts = sum(wave["rollouts"] for wave in adapters.waves)
    assert len(adapters.judge_calls) == rollouts
    headers = [
        {name.lower(): text for name, text in call.headers.items()} for call in adapters.judge_calls
    ]
    keys = {each["authorization"] for each in headers}
    assert keys == {"Bearer the key of the judge"}
    contents = [json.loads(call.body["messages"][-1]["content"]) for call in adapters.judge_calls]
    assert {content["result"]["number"] for content in contents} == {"seven"}
    scores = adapters.project.sql(
        "SELECT explanation, value, uniqExact(rollout) AS rollouts FROM otel.evaluations "
        f"WHERE name = 'quality' AND rollout IN ({ROLLOUTS}) GROUP BY ALL"
    )
    assert [(row["explanation"], row["value"], int(row["rollouts"])) for row in scores] == [
        ("it names a word", 0.25, rollouts)
    ]


def test_a_run_serves_its_adapters(adapters: Adapters) -> None:
    made, waves = adapters.project, adapters.waves
    policies = Policies(made.home)
    assert policies.versions("two")[:4] == [0, 1, 2, 3]
    manifests = [policies.read_version("two", version) for version in (1, 2, 3)]
    assert [(each.artifact, each.base) for each in manifests] == [("adapter", 0)] * 3
    assert [each.parent for each in manifests] == [0, 1, 2]
    assert manifests[0].size < policies.read_version("two", 0).size
    trained = [wave for wave in waves if wave["mode"] == "train"]
    assert [wave["version"] for wave in trained] == [0, 1, 2]
    # the learner's log-probabilities are those of the adapter that the server sampled with
    assert all(wave["metrics"]["drift_k3"] < 1e-6 for wave in trained), trained
    assert [wave["metrics"]["learning_rate"] for wave in trained] == [0.0035, 0.007, 0.007]
    # a new adapter changes nothing
    assert [wave["metrics"]["kl_reference"] > 1e-9 for wave in trained] == [False, True, True]
    assert all(wave["outcomes"] == {"ok": wave["rollouts"]} for wave in trained)
    rows = made.sql(
        "SELECT DISTINCT toInt64(SpanAttributes['ltrain.policy.version']) AS version, "
        "SpanAttributes['gen_ai.response.model'] AS model FROM otel.spans WHERE "
        f"ScopeName = 'ltrain.gateway' AND GenAiOp = 'chat' AND RolloutId IN ({ROLLOUTS}) "
        "ORDER BY version"
    )
    assert [int(row["version"]) for row in rows] == [0, 1, 2]


@pytest.mark.nightly
def test_asynchronous_waves_start_from_the_adapter(adapters: Adapters) -> None:
    made, policies = adapters.project, Policies(adapters.project.home)
    overlapped = made.training(overlapping_recipe(made))
    overlapped.remove("--json")
    done = subprocess.run(overlapped, env=made.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    choice = "publish = adapter: the gateway was started with --publish adapter."
    assert choice in done.stdout.splitlines()
    assert "Run two-turn-2 starts from two@3" in done.stdout
    journal = Journal.load(made.home / "runs" / "two-turn-2")
    assert journal is not None
    train = [wave for wave in journal.waves if wave.mode == "train"]
    # a wave is dispatched before the version of the previous one is published
    assert [(wave.version, wave.published) for wave in train] == [(3, 4), (3, 5), (4, 6)]
    assert all(wave.outcomes == {"ok": wave.rollouts} for wave in train)
    datasets = sorted((made.home / "datasets" / "two-turn-2").glob("train-?"))
    rollouts = [pl.read_parquet(each / "executions")["rollout_id"].to_list() for each in datasets]
    assert [len(each) for each in rollouts] == [wave.rollouts for wave in train]
    assert len(rollouts) == UPDATES and len({*chain(*rollouts)}) == sum(map(len, rollouts))
    assert policies.read_version("two", 6).artifact == "adapter"
