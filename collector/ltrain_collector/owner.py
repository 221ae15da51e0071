"""The owner of a store on this machine: whoever can read its secret.

A store without keys is only read over HTTP; its owner changes it with a key that is signed for each
call.
"""

from ltrain_collector.bound_keys import known_secret, secret_file, sign_owner
from ltrain_collector.dsn import Server, folder_of
from ltrain_instrument.settings import HOME, STORE_SECRET

SECONDS = 60
"""A key is checked when its request begins, and goes over the wire as it is."""

ANOTHERS = "is another store's"
MISSING = "is not here"


def owners_key(server: Server) -> str | None:
    """Return a key with which this user may change the store; None where its secret is not here.

    Raises:
        BadSetting: when the secret is too short.
    """
    folder = folder_of(server, HOME.read())
    secret = known_secret(folder) if folder else None
    return sign_owner(secret, SECONDS) if secret else None


def refusal(server: Server, why: str) -> str:
    """Return the sentence for a user whose secret is missing, or another store's."""
    folder = folder_of(server, HOME.read())
    of_file = f"the file {secret_file(folder)}" if folder else STORE_SECRET.name
    where = STORE_SECRET.name if STORE_SECRET.read() else of_file
    return (
        f"The store {server} is changed by its owner only, and the secret in {where} {why}: set "
        f"LTRAIN_HOME to the home of its `ltrain up`, {STORE_SECRET.name} to its secret, or put an "
        "admin key into the address, as http://any:KEY@host:8123."
    )
