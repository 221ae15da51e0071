"""The store that a run reads and writes, and the key by which its processes send."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.store.service_key import (
        HEADERS_VARIABLE,
        accepts_key,
        collector_secret,
        home_secret,
        open_service_provider,
        require_own_store,
        store_folder,
    )

open_face(__name__)
