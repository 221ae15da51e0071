"""Who may do what: keys, roles, secrets, TLS, and what a bound key may record."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_collector.access import ingest_policy
    from ltrain_collector.access.grants import TRUSTED_SENDERS, Grant, Role, Sender
    from ltrain_collector.access.ingest_policy import (
        COLLECTOR_SERVICE,
        UNLIMITED,
        IngestPolicy,
        Shape,
    )
    from ltrain_collector.access.key_report import key_lines, make_bound_key, parse_role
    from ltrain_collector.access.keys import Keys
    from ltrain_collector.access.secrets import existing_secret, secret_file, store_secret
    from ltrain_collector.access.signed_keys import (
        AttemptKey,
        ExpiredKey,
        InvalidKey,
        Kind,
        sign_admin,
        sign_bound,
        sign_kind,
        sign_owner,
        sign_service,
        verify_key,
    )

open_face(__name__)
