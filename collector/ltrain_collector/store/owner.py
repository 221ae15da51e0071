"""The owner of a store on this machine: the user who can read its secret.

Over HTTP, a store without keys is read-only; its owner changes it with a key signed for each call.
"""

from ltrain_collector.access import existing_secret, secret_file, sign_owner
from ltrain_collector.dsn import Server, local_folder
from ltrain_instrument.settings import HOME, STORE_SECRET

OWNER_KEY_SECONDS = 60
"""Lifetime of an owner's key in seconds: short, since the key is sent in clear text and checked
only when its request starts."""

WRONG_SECRET = "is another store's"
NO_SECRET = "is not here"


def sign_owner_key(server: Server) -> str | None:
    """Return a key with which this user can change the store, or None without its secret.

    Raises:
        BadSetting: the secret is too short.
    """
    folder = local_folder(server, HOME.read())
    secret = existing_secret(folder) if folder else None
    return sign_owner(secret, OWNER_KEY_SECONDS) if secret else None


def not_owner_message(server: Server, problem: str) -> str:
    """Return the message for a user whose secret is missing or belongs to another store."""
    folder = local_folder(server, HOME.read())
    file_place = f"the file {secret_file(folder)}" if folder else STORE_SECRET.name
    secret_place = STORE_SECRET.name if STORE_SECRET.read() else file_place
    return (
        f"Only its owner can change the store {server}, and the secret in {secret_place} "
        f"{problem}. Set LTRAIN_HOME to the home of its `ltrain up`, set {STORE_SECRET.name} to "
        "its secret, or put an admin key in the address, as http://any:KEY@host:8123."
    )
