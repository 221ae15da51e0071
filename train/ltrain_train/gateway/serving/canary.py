"""The candidate of a policy, which answers a share of the conversations of production.

* A conversation is assigned by a hash of its key and the experiment: no state, so that a restart
  and other replicas assign it alike.
* A conversation that began before the experiment stays with the current version.
"""

from hashlib import blake2b

from opentelemetry.trace import Span

from ltrain_instrument import attributes
from ltrain_train.gateway.conversations import Unit
from ltrain_transforms.deployment_file import Arm, Deployment


class Canary:
    """Assigns conversations to the candidate or to the current version."""

    def __init__(self, policy: str, deployment: Deployment) -> None:
        self.deployment = deployment
        self._salt = f"{deployment.experiment} {policy} ".encode()

    @property
    def version(self) -> int:
        """The candidate."""
        return self.deployment.version

    def assign(self, unit: Unit, span: Span) -> Arm:
        """Return the arm of a call's unit, and record it on the call's span."""
        digest = blake2b(self._salt + unit.key.encode(errors="surrogatepass"), digest_size=8)
        is_part = unit.began >= self.deployment.began
        place = int.from_bytes(digest.digest()) / 2**64
        arm = Arm.CANDIDATE if is_part and place < self.deployment.share else Arm.CURRENT
        if is_part:
            span.set_attributes(
                {
                    attributes.EXPERIMENT: self.deployment.experiment,
                    attributes.EXPERIMENT_ARM: arm,
                    attributes.EXPERIMENT_UNIT: digest.hexdigest(),
                }
            )
        return arm
