"""A run that publishes its adapter: each version is served as it was trained.

Its agent uses a service, and a judge scores the results beside the reward function.
"""

import json
import re
import subprocess
from collections.abc import Callable
from typing import Any

from tests.end_to_end.conftest import TRAIN, load

from ltrain_train.policy import Policies

UPDATES = 3
VERDICT = json.dumps({"evidence": "it names a word", "score": 0.25})
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

    Args:
        judge: URL of the server with the judge's model.
    """
    (project.folder / "numbers").mkdir()
    (project.folder / "numbers" / "7").write_text("seven")
    (project.folder / "service_agent.py").write_text(AGENT)
    text = (project.folder / "ltrain.toml").read_text()
    text = re.sub(r"lora_rank = 0\nupdates = \d+", f"lora_rank = 4\nupdates = {UPDATES}", text)
    serve = '[serve]\npublish = "adapter"\nmax_adapters = 2\n\n[train]'
    text = text.replace("[train]", serve).replace("word_agent:", "service_agent:")
    more = JUDGE_AND_SERVICE.format(url=judge)
    (project.folder / "adapter.toml").write_text(text + more)
    return "adapter.toml"


def test_a_run_serves_its_adapters(project: Callable[[str], Any]) -> None:
    made = project("adapters")
    made.environ["JUDGE_KEY"] = "the key of the judge"
    with load(TRAIN / "rollout" / "outside.py").Outside(rules=[('"result"', VERDICT)]) as judge:
        _train_and_continue(made, judge)


def _train_and_continue(made: Any, judge: Any) -> None:
    waves = made.train(adapter_recipe(made, judge.url))
    _check_judge(made, judge, sum(wave["rollouts"] for wave in waves))
    policies = Policies(made.home)
    assert policies.versions("two") == [0, 1, 2, 3]
    manifests = [policies.read_version("two", version) for version in (1, 2, 3)]
    assert [(each.artifact, each.base) for each in manifests] == [("adapter", 0)] * 3
    assert [each.parent for each in manifests] == [0, 1, 2]
    assert manifests[0].size < policies.read_version("two", 0).size
    trained = [wave for wave in waves if wave["mode"] == "train"]
    assert [wave["version"] for wave in trained] == [0, 1, 2]
    # the learner's log-probabilities are those of the adapter that the server sampled with
    assert all(wave["metrics"]["drift_k3"] < 1e-6 for wave in trained), trained
    assert all(wave["outcomes"] == {"ok": wave["rollouts"]} for wave in trained)
    rows = made.sql(
        "SELECT DISTINCT toInt64(SpanAttributes['ltrain.policy.version']) AS version, "
        "SpanAttributes['gen_ai.response.model'] AS model FROM otel.spans "
        "WHERE ScopeName = 'ltrain.gateway' AND GenAiOp = 'chat' ORDER BY version"
    )
    assert [int(row["version"]) for row in rows] == [0, 1, 2]
    continued = made.training("adapter.toml", "--updates", str(UPDATES + 1))
    continued.remove("--json")
    done = subprocess.run(continued, env=made.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    choice = "publish = adapter: the gateway was started with --publish adapter."
    assert choice in done.stdout.splitlines()
    assert f"Run two-turn goes on after update {UPDATES} of {UPDATES + 1}" in done.stdout
    assert policies.read_version("two", 4).artifact == "adapter"


def _check_judge(made: Any, judge: Any, rollouts: int) -> None:
    """Check that the judge has scored each rollout, which had used its service."""
    assert len(judge.calls) == rollouts
    headers = [{name.lower(): text for name, text in call.headers.items()} for call in judge.calls]
    keys = {each["authorization"] for each in headers}
    assert keys == {"Bearer the key of the judge"}
    contents = [json.loads(call.body["messages"][-1]["content"]) for call in judge.calls]
    assert {content["result"]["number"] for content in contents} == {"seven"}
    scores = made.sql(
        "SELECT explanation, value, uniqExact(rollout) AS rollouts FROM otel.evaluations "
        "WHERE name = 'quality' GROUP BY ALL"
    )
    assert [(row["explanation"], row["value"], int(row["rollouts"])) for row in scores] == [
        ("it names a word", 0.25, rollouts)
    ]
