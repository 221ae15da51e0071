"""Kills of `ltrain run --watch`: each execution is trained on once, those of the outage too.

Watch, store and gateway are real; vLLM and the learner are fakes.
"""

import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.driver import until
from tests.fake_backend import read_trained
from tests.train.loop.kills.invariants import check_datasets, check_lineage
from tests.train.loop.kills.kills import Kill, draw_kills
from tests.train.loop.kills.project import POLICY, LightProject, opened_project
from tests.transforms.conftest import Attributes, Scene
from tests.transforms.datasets.test_lineage import REWARDS

from ltrain_train.policy import Policies

RECIPE = f"""
[source]
run = "demo"
trust = ["none"]

[[policy]]
name = "{POLICY}"
agents = ["write"]

[[reward]]
name = "answer"
evaluation = "reward"

[watch]
executions = 4
reward_window = 0.1
poll = 0.1

[train]
loss = "vanilla"
lora_rank = 0
keep_versions = 1000
max_staleness = 1000
dtype = "fp32"
drift_warning = 1e6
drift_limit = 1e6
"""

WRITES = {"os.rename *": 4, "os.* policies/*": 8, "open policies/*": 4, "* datasets/*": 90}
"""About as many of each as an update has, or fewer."""

LOADING = (Kill(loading=True, everything=True), Kill(loading=True))
"""Kills between a version on disk and `current`, which the gateway may still change."""


class Traffic:
    """Sends groups of executions to the store until it is stopped, also while it is away."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.sent: set[str] = set()
        """The executions whose spans are all stored."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Traffic":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop after the group that is being sent."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stopped.wait(0.8):
            self._send_group(number)
            number += 1

    def _send_group(self, number: int) -> None:
        scene = Scene(run="demo")
        for sample, _ in enumerate(REWARDS):
            rollout = scene.attempt(task=f"g{number}", sample=sample)
            rollout.clock = time.time_ns()
            rollout.dispatch()
            version: Attributes = {"ltrain.policy.name": POLICY, "ltrain.policy.version": 0}
            rollout.llm(response=(4, sample), gateway=version)
        self._post(scene)
        time.sleep(0.2)  # a watch that looks now sees executions that still run
        for rollout, reward in zip(scene.attempts, REWARDS, strict=True):
            begun = list(rollout.spans)
            rollout.evaluate(reward)
            rollout.close()
            del rollout.spans[: len(begun)]
        self._post(scene)
        self.sent |= {rollout.rollout for rollout in scene.attempts}

    def _post(self, scene: Scene) -> None:
        self._post_body(scene.request())

    def _post_body(self, body: bytes) -> None:
        headers = {"content-type": "application/x-protobuf"}
        request = urllib.request.Request(f"{self.url}/v1/traces", body, headers)
        while True:
            try:
                with urllib.request.urlopen(request, timeout=10):
                    return
            except OSError:  # the store is away
                time.sleep(0.1)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[LightProject]:
    with opened_project(tmp_path / "p", recipe=RECIPE, arguments=("--watch",)) as made:
        made.environ["FAKE_VLLM_RELOAD"] = "0.3"  # a publication takes time
        yield made


def test_each_execution_is_trained_on_once(project: LightProject) -> None:
    policies = Policies(project.home)
    project.start_services()
    with Traffic(project.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]) as traffic:
        for kill in (*LOADING, *draw_kills(WRITES)):
            kill.strike(project)
            project.start_services()
        traffic.stop()

    def trained() -> set[str]:
        return set(read_trained(policies.path(POLICY, policies.current(POLICY))))

    run = project.start_run()
    until(lambda: run.ended or trained() >= traffic.sent, "the last update")
    run.process.send_signal(signal.SIGINT)
    assert run.end() in (1, 130), run.text
    assert set(check_lineage(project.home, POLICY)) == traffic.sent
    check_datasets(project.home, "demo", POLICY)
    project.check_commands()
