"""The trial of a policy: two versions answer the conversations of production, each a share.

* In the shadow the current version answers all of them, and the candidate some calls of its share
  again, one at a time, so that users share the server with one more call.
* A conversation is assigned by a hash of its key and the experiment: no state, so that a restart
  and other replicas assign it alike.
* A conversation that began before the experiment is not assigned: the current version answers.
"""

import asyncio
import math
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from hashlib import blake2b
from threading import Lock
from typing import Any

from opentelemetry.trace import Span

from ltrain_instrument import attributes
from ltrain_train.gateway.conversations import Unit
from ltrain_transforms.deployment_file import Arm, Deployment, Stage

SHADOW_LIMIT = 600.0
"""Seconds after which the candidate may answer again, whatever became of the call before."""


KNOWN_UNITS = 20_000
"""Units whose first call is remembered: the latest."""


class RecentUnits:
    """When sessions and traces called first; conversations without a trace know it themselves."""

    def __init__(self) -> None:
        self._began: dict[str, float] = {}
        self._lock = Lock()

    def date(self, unit: Unit) -> Unit:
        """Return a unit that calls now, with the time of its first call."""
        if unit.began != math.inf:
            return unit
        with self._lock:
            began = self._began.pop(unit.key, None) or time.time()
            self._began[unit.key] = began
            if len(self._began) > KNOWN_UNITS:
                del self._began[next(iter(self._began))]
        return replace(unit, began=began)


@dataclass(frozen=True, slots=True)
class Assignment:
    """The versions that answer a call."""

    version: int | None = None
    """The one whose answer the user gets; None: the current version."""
    shadow: dict[str, str] | None = None
    """The attributes of the candidate's answer that nobody sees; None: there is none."""


class Canary:
    """Assigns each conversation to one of the two versions of a trial."""

    def __init__(self, policy: str, deployment: Deployment) -> None:
        self.deployment = deployment
        self._salt = f"{deployment.experiment} {policy} ".encode()
        self._shadowed_until = 0.0
        """Until when the candidate answers in the shadow; monotonic seconds."""
        self._answering: asyncio.Task[None] | None = None

    @property
    def beside(self) -> int | None:
        """The version that answers calls beside the current one."""
        return self.deployment.beside

    def assign(self, unit: Unit, span: Span) -> Assignment:
        """Return the versions that answer a call of a unit, and record its arm on the span."""
        deployment = self.deployment
        if unit.began < deployment.began:
            return Assignment()
        digest = blake2b(self._salt + unit.key.encode(errors="surrogatepass"), digest_size=8)
        place = int.from_bytes(digest.digest()) / 2**64
        arm = Arm.CANDIDATE if place < deployment.share else Arm.CURRENT
        known = {
            attributes.EXPERIMENT: deployment.experiment,
            attributes.EXPERIMENT_ARM: str(arm),
            attributes.EXPERIMENT_UNIT: digest.hexdigest(),
        }
        if deployment.stage is Stage.SHADOW:
            if arm is Arm.CURRENT or not self._begin_shadow():
                return Assignment()
            span.set_attributes(known | {attributes.EXPERIMENT_ARM: Arm.CURRENT})
            return Assignment(shadow=known)
        span.set_attributes(known)
        return Assignment(deployment.version if arm is Arm.CANDIDATE else deployment.previous)

    def _begin_shadow(self) -> bool:
        """Return whether the candidate is free to answer a further call in the shadow."""
        now = time.monotonic()
        if now < self._shadowed_until:
            return False
        self._shadowed_until = now + SHADOW_LIMIT
        return True

    def answer_in_shadow(self, answering: Coroutine[Any, Any, None]) -> None:
        """Run a call of the candidate that nobody waits for; it is free again afterwards."""
        self._answering = asyncio.create_task(answering)
        self._answering.add_done_callback(self._end_shadow)

    def _end_shadow(self, _: asyncio.Task[None]) -> None:
        self._shadowed_until = 0.0
