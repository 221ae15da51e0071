"""The trial of a policy: two versions answer the conversations of production, each a share.

* A conversation is assigned by a hash of its key and the experiment: no state, so that a restart
  and other replicas assign it alike.
* A conversation that began before the experiment is not assigned: the current version answers.
"""

from hashlib import blake2b

from opentelemetry.trace import Span

from ltrain_instrument import attributes
from ltrain_train.gateway.conversations import Unit
from ltrain_transforms.deployment_file import Arm, Deployment


class Canary:
    """Assigns each conversation to one of the two versions of a trial."""

    def __init__(self, policy: str, deployment: Deployment) -> None:
        self.deployment = deployment
        self._salt = f"{deployment.experiment} {policy} ".encode()

    @property
    def beside(self) -> int | None:
        """The version that answers calls beside the current one."""
        return self.deployment.beside

    def assign(self, unit: Unit, span: Span) -> int | None:
        """Return the version that answers a call's unit, and record its arm on the call's span.

        None: the current version.
        """
        deployment = self.deployment
        if unit.began < deployment.began:
            return None
        digest = blake2b(self._salt + unit.key.encode(errors="surrogatepass"), digest_size=8)
        place = int.from_bytes(digest.digest()) / 2**64
        arm = Arm.CANDIDATE if place < deployment.share else Arm.CURRENT
        span.set_attributes(
            {
                attributes.EXPERIMENT: deployment.experiment,
                attributes.EXPERIMENT_ARM: arm,
                attributes.EXPERIMENT_UNIT: digest.hexdigest(),
            }
        )
        return deployment.version if arm is Arm.CANDIDATE else deployment.previous
