"""`policy.json`: the manifest of a policy version, with its files and its lineage.

`ltrain_train` writes it, and `ltrain show` reads it; docs/policies.md describes the format.
"""

from datetime import UTC, datetime
from hashlib import sha256

from pydantic import BaseModel, ConfigDict

POLICY_MANIFEST = "policy.json"


class PolicyFile(BaseModel):
    """One file of a policy version."""

    model_config = ConfigDict(frozen=True)

    size: int
    """Size in bytes."""
    sha256: str


class PolicyVersion(BaseModel):
    """The contents of `policy.json`."""

    model_config = ConfigDict(frozen=True)

    policy: str
    version: int
    parent: int | None = None
    """The version that training continued from."""
    dataset: str | None = None
    recipe: str | None = None
    created: float
    """Unix seconds."""
    files: dict[str, PolicyFile]

    @property
    def digest(self) -> str:
        """A digest of all files."""
        lines = (f"{name} {file.sha256}" for name, file in sorted(self.files.items()))
        return sha256("\n".join(lines).encode()).hexdigest()

    @property
    def size(self) -> int:
        """Size of all files, in bytes."""
        return sum(file.size for file in self.files.values())

    @property
    def created_at(self) -> datetime:
        """When the version was created."""
        return datetime.fromtimestamp(self.created, UTC)
