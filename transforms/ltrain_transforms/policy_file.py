"""`policy.json`: what a version of a policy says of itself, and where it came from.

The training part writes it, whoever shows lineage reads it; docs/policies.md is the contract.
"""

from datetime import UTC, datetime
from hashlib import sha256

from pydantic import BaseModel, ConfigDict

POLICY_MANIFEST = "policy.json"


class PolicyFile(BaseModel):
    """One file of a version."""

    model_config = ConfigDict(frozen=True)

    size: int
    """Bytes."""
    sha256: str


class PolicyVersion(BaseModel):
    """What `policy.json` says of a version."""

    model_config = ConfigDict(frozen=True)

    policy: str
    version: int
    parent: int | None = None
    """The version that training started from."""
    dataset: str | None = None
    recipe: str | None = None
    created: float
    """Unix seconds."""
    files: dict[str, PolicyFile]

    @property
    def digest(self) -> str:
        """One digest of all its files."""
        lines = (f"{name} {file.sha256}" for name, file in sorted(self.files.items()))
        return sha256("\n".join(lines).encode()).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(file.size for file in self.files.values())

    @property
    def born(self) -> datetime:
        """When it was made."""
        return datetime.fromtimestamp(self.created, UTC)
