"""A learner's checkpoint: the backend's files and a `learner.json`, in one atomic directory.

It contains the trained weights (of a LoRA run only the adapter), the optimizer, the random state
and the step counts. It can be loaded only by a learner of the same policy, base model, LoRA shape
and rank count. `learner.json` lists the other files with their digests, which are compared before
a file is loaded.
"""

from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

from pydantic import TypeAdapter

from ltrain_train.errors import BadBase, BadCheckpoint
from ltrain_train.learner.protocol import Job
from ltrain_train.policy import is_elsewhere, read_config
from ltrain_transforms.file_digests import (
    FileDigest,
    describe_files,
    find_damage,
    read_sealed,
    seal,
)
from ltrain_transforms.policy_file import TINKER_FILE

RECORD_FILE = "learner.json"
FORMAT_VERSION = 1
SAMPLED_PLACES = 64
"""Places in each weight file that the fingerprint hashes."""
SAMPLE_BYTES = 1 << 14
"""Bytes hashed at each place."""


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """The content of `learner.json`."""

    steps: int
    """Optimizer steps since the base."""
    updates: int
    """Calls of `step` since the base."""
    base: str
    """Fingerprint of the base's weights."""
    lora_rank: int
    lora_alpha: int
    ranks: int
    recipe: str
    policy: str | None = None
    """The policy's name; None in the checkpoints of older versions of ltrain."""
    format: int = FORMAT_VERSION
    files: dict[str, FileDigest] | None = None
    """The other files, by their paths; None in the checkpoints of older versions of ltrain."""


_RECORD = TypeAdapter(CheckpointRecord)


def make_record(job: Job, base: str, steps: int = 0, updates: int = 0) -> CheckpointRecord:
    """Return the record of a learner of `job` after so many optimizer steps and updates."""
    shape = (job.lora_rank, job.lora_alpha)
    return CheckpointRecord(steps, updates, base, *shape, job.ranks, job.recipe, job.policy)


def check_fit(directory: Path, job: Job) -> None:
    """Check that the learner of `job` can continue from a checkpoint."""
    read_record(directory, make_record(job, fingerprint(job.base)))


def write_record(directory: Path, record: CheckpointRecord) -> None:
    """Write the record, with the digests of all other files, into a checkpoint's directory."""
    paths = {path.relative_to(directory).as_posix(): path for path in sorted(directory.rglob("*"))}
    files = {name: p for name, p in paths.items() if p.is_file() and name != RECORD_FILE}
    complete = replace(record, files=describe_files(files))
    (directory / RECORD_FILE).write_text(seal(asdict(complete)))


def read_record(directory: Path, expected: CheckpointRecord) -> CheckpointRecord:
    """Read the record of a checkpoint, and check that it fits the learner of `expected`.

    Raises:
        BadCheckpoint: when it does not fit, or one of its files is damaged or missing.
    """
    saved = _parse_record(directory)
    for name in ("format", "policy", "base", "lora_rank", "lora_alpha", "ranks"):
        value = getattr(saved, name)
        if value != getattr(expected, name) and (name, value) != ("policy", None):
            raise BadCheckpoint(
                f"The checkpoint {directory} has {name} {value}, this run has "
                f"{getattr(expected, name)}. Use the settings of the checkpoint, or start a new "
                "run."
            )
    _require_undamaged(directory, saved)
    return saved


def check_files(directory: Path) -> int | None:
    """Compare the files of a checkpoint with its record, and return their number.

    Returns:
        None if it was written by an older version of ltrain, whose record lists no files.

    Raises:
        BadCheckpoint: when the record cannot be read, or a file is damaged or missing.
    """
    saved = _parse_record(directory)
    _require_undamaged(directory, saved)
    return None if saved.files is None else len(saved.files)


def _parse_record(directory: Path) -> CheckpointRecord:
    try:
        return _RECORD.validate_python(read_sealed(directory / RECORD_FILE))
    except (OSError, ValueError) as error:
        raise BadCheckpoint(
            f"No checkpoint at {directory}: its {RECORD_FILE} cannot be read "
            f"({str(error).splitlines()[0]}). Name the directory of a complete checkpoint."
        ) from error


def _require_undamaged(directory: Path, record: CheckpointRecord) -> None:
    if damage := find_damage(directory, record.files or {}):
        raise BadCheckpoint(f"The checkpoint {directory} is damaged: {damage}.")


def check_base(base: Path) -> None:
    """Check that training can start from a model directory."""
    if not base.is_dir():
        raise BadBase(f"No model directory at {base}. Name one in Hugging Face's layout.")
    if not (base / "config.json").is_file():
        raise BadBase(
            f"{base} has no config.json. Name a model directory in Hugging Face's layout."
        )
    has_weights = any(base.glob("*.safetensors")) or any(base.glob("*.bin"))
    if not has_weights and not is_elsewhere(base):
        raise BadBase(f"{base} has no weights (*.safetensors). Convert the model to safetensors.")
    try:
        read_config(base)
    except ValueError as error:
        raise BadBase(
            f"{base / 'config.json'} is not JSON: {error}. Restore the model's own file."
        ) from error


def fingerprint(base: Path) -> str:
    """Return a hash of the sizes and evenly spread bytes of a model's weights, in milliseconds."""
    digest = sha256()
    files = sorted(base.glob("*.safetensors")) or sorted(base.glob("*.bin"))
    for file in files or sorted(base.glob(TINKER_FILE)):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}".encode())
        with file.open("rb") as weights:
            for place in range(SAMPLED_PLACES):
                weights.seek(place * max(size - SAMPLE_BYTES, 0) // (SAMPLED_PLACES - 1))
                digest.update(weights.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]
