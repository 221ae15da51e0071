"""`policy.json`: the manifest of a policy version, with its files and its lineage.

`ltrain_train` writes it; `ltrain build` and `ltrain show` read it. docs/policies.md describes the
format.
"""

from contextlib import suppress
from datetime import UTC, datetime
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path

from pydantic import BaseModel, ConfigDict

POLICY_MANIFEST = "policy.json"
BASE_FILES = {
    "model": ("config.json", "*.safetensors", "*.safetensors.index.json"),
    "tokenizer": ("tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt", "*.tiktoken"),
    "template": ("chat_template.*",),
}
"""The files of a model directory that each digest of `base_digests` covers. A chat template without
a file of its own is in tokenizer_config.json."""


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
    base: int | None = None
    """The version whose weights the learner loads before it loads the checkpoint."""
    checkpoint: str | None = None
    """The learner's checkpoint: a folder, relative to the home."""
    dataset: str | None = None
    recipe: str | None = None
    created: float
    """Unix seconds."""
    files: dict[str, PolicyFile]

    @property
    def digest(self) -> str:
        """A digest of all files."""
        return _digest(self.files)

    @property
    def size(self) -> int:
        """Size of all files, in bytes."""
        return sum(file.size for file in self.files.values())

    @property
    def created_at(self) -> datetime:
        """When the version was created."""
        return datetime.fromtimestamp(self.created, UTC)

    def base_digests(self) -> dict[str, str]:
        """Return the digests of the model, the tokenizer and the chat template."""
        parts = {
            part: {
                name: file
                for name, file in self.files.items()
                if any(fnmatch(name, pattern) for pattern in patterns)
            }
            for part, patterns in BASE_FILES.items()
        }
        return {part: _digest(files) for part, files in parts.items() if files}


def read_base_digests(folder: Path) -> dict[str, str]:
    """Return the base digests of the policy in `folder`; empty if its version 0 is not there."""
    with suppress(OSError, ValueError):  # it is served elsewhere, or its manifest is damaged
        manifest = (folder / "v0" / POLICY_MANIFEST).read_bytes()
        return PolicyVersion.model_validate_json(manifest).base_digests()
    return {}


def _digest(files: dict[str, PolicyFile]) -> str:
    lines = (f"{name} {file.sha256}" for name, file in sorted(files.items()))
    return sha256("\n".join(lines).encode()).hexdigest()
