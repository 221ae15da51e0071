"""The candidate of a policy on disk, and the steps that change its stage."""

import time
from datetime import UTC, datetime

from ltrain_instrument.files import write_file
from ltrain_train.policy.versions import Policies
from ltrain_transforms.deployment_file import (
    FREEZE,
    Deployment,
    Freeze,
    Stage,
    find_candidate,
    find_freeze,
    read_deployments,
    record_deployment,
)
from ltrain_transforms.errors import BadDeployment


class Deployments:
    """The candidates of one policy."""

    def __init__(self, policies: Policies, policy: str) -> None:
        self._policies, self.policy = policies, policy
        self._folder = policies.directory / policy

    def candidate(self) -> Deployment | None:
        """Return the version on trial; None if there is none.

        Raises:
            BadPolicyFile: when `deployments.jsonl` is damaged.
        """
        return find_candidate(self._folder)

    def plan(self, version: int, stage: Stage, *, share: float, by: str, reason: str) -> Deployment:
        """Return the next stage of a version, which `record` then writes.

        Raises:
            UnknownVersion: when the version does not exist.
            BadDeployment: when no step leads there, another version is the candidate, or the policy
                is frozen.
        """
        self._policies.path(self.policy, version)
        if (done := self._find_done(version, stage)) is not None:
            return done
        if stage is not Stage.RETIRED:
            self.require_thawed()
        candidate = self.candidate()
        current = self._policies.current(self.policy)
        if candidate is not None and candidate.version == version:
            if stage is Stage.WATCHED:
                return candidate.watch(current, share, by=by, reason=reason)
            return candidate.move(stage, share=share, by=by, reason=reason)
        if stage is not Stage.CANDIDATE and not stage.is_trial:
            raise BadDeployment(
                f"Version {version} of '{self.policy}' is not a candidate. Start it with `ltrain "
                f"deploy start {self.policy}@{version} --share 0.1`."
            )
        self.require_no_candidate()
        if version == current:
            raise BadDeployment(f"Version {version} of '{self.policy}' is current already.")
        return Deployment.begin(version, share, by=by, stage=stage, reason=reason)

    def require_no_candidate(self) -> None:
        """Check that no trial is under way.

        Raises:
            BadDeployment: when one is.
        """
        if (candidate := self.candidate()) is not None:
            raise BadDeployment(
                f"Version {candidate.version} of '{self.policy}' is a candidate already. Promote "
                f"it or take it back first: `ltrain deploy promote {self.policy}`, `ltrain deploy "
                f"stop {self.policy}`."
            )

    def _find_done(self, version: int, stage: Stage) -> Deployment | None:
        """Return the last stage, if it is this one of the version: a request was sent again."""
        last = next(reversed(read_deployments(self._folder)), None)
        if last is None or (last.version, last.stage) != (version, stage):
            return None
        stays = last.makes_current in (None, self._policies.current(self.policy))
        return last if stays and not stage.is_trial else None

    def record(self, deployment: Deployment) -> None:
        """Write a stage, unless it is the last one."""
        if deployment not in read_deployments(self._folder)[-1:]:
            record_deployment(self._folder, deployment)

    def freeze(self, by: str, reason: str) -> None:
        """End the trial; let no other version become current, and none a candidate."""
        freeze = Freeze(at=time.time(), by=by, reason=reason)
        write_file(self._folder / FREEZE, freeze.model_dump_json() + "\n")
        if (candidate := self.candidate()) is not None:
            current = self._policies.current(self.policy)
            self.record(candidate.end(current, by=by, reason=reason or "frozen"))

    @property
    def is_frozen(self) -> bool:
        """Whether the current version stays until the freeze ends."""
        return find_freeze(self._folder) is not None

    def thaw(self) -> bool:
        """End the freeze; return whether there was one."""
        is_frozen = (self._folder / FREEZE).exists()
        (self._folder / FREEZE).unlink(missing_ok=True)
        return is_frozen

    def require_thawed(self) -> None:
        """Check that the policy is not frozen.

        Raises:
            BadDeployment: when it is.
        """
        freeze = find_freeze(self._folder)
        if freeze is not None:
            at = datetime.fromtimestamp(freeze.at, UTC)
            reason = f": {freeze.reason}" if freeze.reason else ""
            raise BadDeployment(
                f"Policy '{self.policy}' is frozen by {freeze.by} since {at:%Y-%m-%d %H:%M} UTC"
                f"{reason}. Its current version stays. Let others serve again with `ltrain policy "
                f"unfreeze {self.policy}`."
            )
