"""A version is admitted to users, promoted or taken back, by `[deploy]` of the recipe.

* The store is only read. While it is away nothing is decided, and serving goes on.
* A verdict becomes a stage by the same step as that of a person, with its evidence as the reason.
* A promoted version is watched for `watch_after`: the version before it answers `holdback` of the
  conversations, and comes back if the new one is worse.
"""

import json
import logging
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from ltrain_collector.store import Store
from ltrain_instrument import settings
from ltrain_instrument.errors import LtrainError
from ltrain_train.errors import RunInUse
from ltrain_train.gateway import GatewayRefused
from ltrain_train.policy import Deployments, Policies
from ltrain_train.publishing.publish import find_gateway
from ltrain_train.publishing.stages import first_trial, move, require_candidate
from ltrain_train.runs import retry_load, store_is_away
from ltrain_transforms.deployment_file import Deployment, Stage
from ltrain_transforms.errors import BadDeployment
from ltrain_transforms.recipe import Deploy, Recipe
from ltrain_transforms.trials import Bounds, Decision, Verdict, judge, read_metrics

NOTIFY_TIMEOUT = 30.0
"""Seconds for the request or the command of `notify`."""

_logger = logging.getLogger("ltrain.deploy")


@dataclass(frozen=True, slots=True)
class Look:
    """The result of a look at a trial."""

    sentence: str
    moved: Stage | None = None
    """The stage that the candidate entered; None: the trial goes on."""
    asks: bool = False
    """Whether a person is asked to promote it."""


@dataclass(frozen=True, slots=True)
class TrialRule:
    """Decides about the versions of a policy that are on trial."""

    policies: Policies
    policy: str
    options: Deploy
    author: str
    """The program that decides, for `ltrain deploy status`."""
    examine: Callable[[int], tuple[bool, str]]
    """Returns whether a version passes the gates, and the sentence on it."""

    def admit(self, candidate: Deployment) -> Look:
        """Let a candidate answer users if it passes the gates.

        Raises:
            LtrainError: when the store is away, or another process works on the policy.
        """
        try:
            passes, reason = self.examine(candidate.version)
        except LtrainError as error:
            if store_is_away(error) or isinstance(error, RunInUse):
                raise
            passes, reason = False, f"its gates could not be run: {str(error).rstrip('.')}"
        stage = first_trial(self.options) if passes else Stage.RETIRED
        return self._move(candidate, stage, reason)

    def look(self, candidate: Deployment, store: Store) -> Look:
        """Judge a candidate by what the store has of its trial, and carry out the verdict."""
        settled = time.time_ns() - int(self.options.reward_window * 1e9)
        bounds = Bounds.of(self.options, candidate.stage)
        verdict = judge(read_metrics(store, candidate.experiment, settled), bounds)
        name = self._name(candidate)
        stage, reason = self._follow(candidate, verdict)
        if stage is None:
            return Look(f"{name} goes on: {reason}.")
        is_promotion = stage.is_served and candidate.stage is Stage.CANARY
        if is_promotion and self.options.approve == "manual":
            command = f"`ltrain deploy promote {self.policy}`"
            return Look(f"{name} may be promoted: {reason}. {command}", asks=True)
        return self._move(candidate, stage, reason)

    def announce(self, candidate: Deployment, look: Look) -> None:
        """Send a decision to `notify` of `[deploy]`."""
        if self.options.notify is not None and (look.moved is not None or look.asks):
            event = {
                "text": look.sentence,
                "policy": self.policy,
                "version": candidate.version,
                "stage": look.moved or candidate.stage,
                "experiment": candidate.experiment,
            }
            notify(self.options.notify, event)

    def _follow(self, candidate: Deployment, verdict: Verdict) -> tuple[Stage | None, str]:
        """Return the stage after a verdict, None: the trial goes on, and the reason."""
        if candidate.stage is Stage.WATCHED:
            return self._follow_watched(candidate, verdict)
        promoted = Stage.WATCHED if self.options.watch_after else Stage.CURRENT
        stages = {
            Decision.PROMOTE: Stage.CANARY if candidate.stage is Stage.SHADOW else promoted,
            Decision.TAKE_BACK: Stage.RETIRED,
            Decision.UNDECIDED: Stage.RETIRED,
        }
        return stages.get(verdict.decision), verdict.reason

    def _follow_watched(self, candidate: Deployment, verdict: Verdict) -> tuple[Stage | None, str]:
        """Return the stage after a watched version, None: it is watched on, and the reason."""
        if verdict.decision is Decision.TAKE_BACK:
            return Stage.RETIRED, f"{verdict.reason}; v{candidate.previous} is current again"
        seconds = self.options.watch_after
        if time.time() >= candidate.at + seconds:
            return Stage.CURRENT, f"no loss was seen in {seconds:g} s after its promotion"
        return None, f"no loss was seen since its promotion, which is watched for {seconds:g} s"

    def _move(self, candidate: Deployment, stage: Stage, reason: str) -> Look:
        """Move a version to a stage, unless another command has moved it meanwhile."""
        own = self.options.share or candidate.share  # a person may have begun the trial
        shares = {Stage.SHADOW: own, Stage.CANARY: own, Stage.WATCHED: 1 - self.options.holdback}
        share = shares.get(stage, 0.0)
        try:
            with find_gateway(self.policies.directory.parent, self.policy) as gateway:
                step = partial(move, self.policies, gateway, self.policy, candidate.version, stage)
                retry_load(lambda: step(share=share, by=self.author, reason=reason))
        except (BadDeployment, GatewayRefused):
            if Deployments(self.policies, self.policy).candidate() == candidate:
                raise
            return Look(f"{self._name(candidate)} was moved by another command.")
        return Look(f"{self._name(candidate)} is {stage}: {reason}.", stage)

    def _name(self, candidate: Deployment) -> str:
        return f"v{candidate.version} of policy '{self.policy}'"


def decide_candidate(
    name: str,
    recipe: Path,
    store: str | None,
    examine: Callable[[int], tuple[bool, str]],
    *,
    watch: bool,
) -> None:
    """Judge the candidate of a policy once, or until its trial has ended.

    Args:
        recipe: the file with `[deploy]`.
        store: the address of the store; None: LTRAIN_STORE.
        examine: returns whether a version passes the gates, and the sentence on it.

    Raises:
        BadDeployment: when the policy has no candidate.
    """
    policies = Policies(settings.HOME.read())
    rule = TrialRule(policies, name, Recipe.load(recipe).deploy, "ltrain deploy decide", examine)
    first = require_candidate(policies, name)
    candidate: Deployment | None = first
    while candidate is not None:
        look = _look(rule, candidate, store, waits=watch)
        if look is not None:
            print(look.sentence, flush=True)
            rule.announce(candidate, look)
        ends = look is not None and (look.asks or look.moved in (Stage.CURRENT, Stage.RETIRED))
        if ends or not watch:
            return
        time.sleep(rule.options.poll)
        candidate = Deployments(policies, name).candidate()
    print(f"The trial of v{first.version} has ended: `ltrain deploy status {name}`.")


def _look(rule: TrialRule, candidate: Deployment, store: str | None, *, waits: bool) -> Look | None:
    """Look at a trial; return None while the store is away, if the caller waits for it."""
    try:
        if candidate.stage is Stage.CANDIDATE:
            return rule.admit(candidate)
        with Store.open(store, create=False) as opened:
            return rule.look(candidate, opened)
    except LtrainError as error:
        if not (waits and store_is_away(error)):
            raise
        _logger.warning("ltrain: nothing is decided while the store is away: %s", error)
        return None


def notify(target: str, event: Mapping[str, Any]) -> None:
    """Send an event as JSON; a fault is logged, and nothing is sent again.

    Args:
        target: a URL, which gets a POST, or a command, which gets the event at its standard input.
        event: its `text` is a sentence, the field that Slack shows.
    """
    body = json.dumps(event)
    try:
        if target.startswith(("http://", "https://")):
            headers = {"content-type": "application/json"}
            httpx.post(
                target, content=body, headers=headers, timeout=NOTIFY_TIMEOUT
            ).raise_for_status()
        else:
            command = shlex.split(target)
            subprocess.run(command, input=body, text=True, timeout=NOTIFY_TIMEOUT, check=True)
    except (httpx.HTTPError, OSError, ValueError, subprocess.SubprocessError) as error:
        # the address may have a key
        fault = type(error).__name__ if isinstance(error, httpx.HTTPError) else str(error)
        _logger.warning("ltrain: notify of [deploy] failed: %s. The decision holds.", fault)
