"""Programs that attempts use besides the model: started, checked, leased and started again."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.attempt_services.instance import ServiceFailed
    from ltrain_train.attempt_services.pool import NO_LEASE, Lease, ServicePool

open_face(__name__)
