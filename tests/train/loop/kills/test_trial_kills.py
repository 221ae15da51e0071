"""Kills of `ltrain run --watch` while versions are tried on users, promoted and taken back.

Watch, store and gateway are real; vLLM and the learner are fakes. Of four versions the first and
the third are worse than the current one as canaries, the fourth once it is current.
"""

import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from tests.chaos.driver import until
from tests.train.loop.kills.invariants import check_lineage
from tests.train.loop.kills.kills import draw_kills
from tests.train.loop.kills.project import POLICY, LightProject, opened_project
from tests.train.loop.kills.test_watch_kills import RECIPE, Traffic
from tests.transforms.trials.test_stored import Calls

from ltrain_train.policy import Policies
from ltrain_transforms.deployment_file import (
    NEXT,
    Deployment,
    Stage,
    find_candidate,
    read_deployments,
)
from ltrain_transforms.policy_file import read_promotions

DEPLOY = """
[serve]
publish = "adapter"

[deploy]
share = 0.5
goal = "thumbs"
guards = {}
max_loss = 0.1
reward_window = 0
watch_after = 2
shadow = 50
holdback = 0.5
"""
UNITS = 120
"""Conversations of each side of a trial, more than enough for a decision."""
WRITES = {"os.* policies/*": 8, "open policies/*": 4, "* datasets/*": 60, "open *": 60}


class Users(Traffic):
    """Sends executions, and the users' calls of each trial."""

    def __init__(self, url: str, policies: Path) -> None:
        super().__init__(url)
        self._folder = policies / POLICY
        self._asked: set[str] = set()

    def _run(self) -> None:
        number = 0
        while not self._stopped.wait(0.2):
            candidate = find_candidate(self._folder)
            if candidate is None:
                self._send_group(number)
                number += 1
            elif candidate.experiment not in self._asked:
                self._ask(candidate)
                self._asked.add(candidate.experiment)

    def _ask(self, trial: Deployment) -> None:
        """Send the calls of a trial, whose candidate is right in 0.9, 0.5 or 0.1 of them."""
        good = 0.1 if trial.version % 2 else 0.9
        if trial.stage is Stage.WATCHED:
            good = 0.5 if trial.version % 4 else 0.1
        calls = Calls(trial.experiment)
        for unit in range(UNITS):
            calls.call("candidate", f"a{unit}", float(unit < good * UNITS))
            calls.call("current", f"b{unit}", float(unit < UNITS / 2))
        body = encode_spans(calls.exporter.get_finished_spans()).SerializeToString()
        self._post_body(body)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[LightProject]:
    with opened_project(
        tmp_path / "p",
        recipe=RECIPE.replace("lora_rank = 0", "lora_rank = 2") + DEPLOY,
        arguments=("--watch",),
        serve_arguments=("--publish", "adapter", "--lora-rank", "2"),
    ) as made:
        yield made


def check_stages(home: Path) -> None:
    """Check that no version skipped a stage, had one twice, or was current without its trial."""
    folder = home / "policies" / POLICY
    stages: dict[int, list[Stage]] = {}
    for each in read_deployments(folder):
        stages.setdefault(each.version, []).append(each.stage)
    for version, path in stages.items():
        assert path[0] is Stage.SHADOW, version
        assert all(later in NEXT[earlier] for earlier, later in pairwise(path)), (version, path)
        assert len(set(path)) == len(path), (version, path)
    promoted = [version for _, version in read_promotions(folder) if version]
    assert all(Stage.WATCHED in stages[version] for version in promoted), promoted
    assert not any(version % 2 for version in promoted), promoted


def test_each_version_is_tried_before_it_is_current(project: LightProject) -> None:
    policies = Policies(project.home)
    project.start_services()

    def good() -> list[int]:
        found = read_deployments(policies.directory / POLICY)
        return [each.version for each in found if each.stage is Stage.CURRENT]

    def retired() -> list[int]:
        found = read_deployments(policies.directory / POLICY)
        return [each.version for each in found if each.stage is Stage.RETIRED]

    url = project.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
    with Users(url, policies.directory) as users:
        for kill in draw_kills(WRITES):
            kill.strike(project)
            project.start_services()
        run, enough = project.start_run(), len(good()) + 2
        until(lambda: run.ended or len(good()) >= enough, "two more versions")
        users.stop()
        until(lambda: run.ended or not find_candidate(policies.directory / POLICY), "the trial")
    run.process.send_signal(signal.SIGINT)
    assert run.end() in (1, 130), run.text
    check_stages(project.home)
    assert retired()
    assert set(check_lineage(project.home, POLICY)) <= users.sent
    project.check_commands()
