"""Programs that attempts use besides the model: started, checked, leased and started again."""

from ltrain_train.attempt_services.instance import ServiceFailed
from ltrain_train.attempt_services.pool import NO_LEASE, Lease, ServicePool

__all__ = ["NO_LEASE", "Lease", "ServiceFailed", "ServicePool"]
