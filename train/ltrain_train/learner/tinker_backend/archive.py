"""The archive of an adapter: downloaded, unpacked safely, and checked against the base."""

import json
import tarfile
from pathlib import Path

import httpx
from safetensors.torch import load_file

from ltrain_train.errors import BadModel, LearnerFailed
from ltrain_train.learner.weights import require_finite
from ltrain_train.policy import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    adapted_modules,
    adapter_size,
    check_adapter,
    read_adapter_config,
)

ARCHIVE = "archive.tar"
SPARE = 64 << 20
"""Bytes of an archive beyond twice the size of the adapter in fp32."""
UNKNOWN = 8 << 30
"""Bytes of the archive if only the server has the weights of the base."""
TIMEOUT = 60.0
"""Seconds for each part of the download."""


def download_adapter(url: str, directory: Path, base: Path, rank: int) -> None:
    """Write the adapter of an archive into a directory, in PEFT's layout.

    Args:
        base: the weights of the model.
        rank: of the adapter, by which its size is bounded.

    Raises:
        LearnerFailed: when the download fails, or is larger than such an adapter can be.
        BadModel: when the archive has no adapter that fits.
    """
    size = adapter_size(base, rank)
    limit = 2 * size + SPARE if size else UNKNOWN
    archive = directory / ARCHIVE
    try:
        _download(url, archive, limit)
        _extract(archive, directory, limit)
    finally:
        archive.unlink(missing_ok=True)
    _name_modules(directory)
    check_adapter(directory, base)
    if (found := read_adapter_config(directory).r) != rank:
        raise BadModel(f"The adapter of the Tinker server has rank {found}, and {rank} is trained.")
    tensors = load_file(directory / ADAPTER_WEIGHTS)
    require_finite([name for name, x in tensors.items() if not x.isfinite().all()], directory)


def _download(url: str, archive: Path, limit: int) -> None:
    size = 0
    try:
        with (
            httpx.stream("GET", url, timeout=TIMEOUT, follow_redirects=True) as answer,
            archive.open("wb") as file,
        ):
            answer.raise_for_status()
            for part in answer.iter_bytes():
                size += len(part)
                if size > limit:
                    raise LearnerFailed(
                        f"The archive of the adapter has more than {limit} bytes, which no adapter "
                        "of this rank has. It was not unpacked."
                    )
                file.write(part)
    except httpx.HTTPError as error:
        raise LearnerFailed(
            f"The adapter could not be downloaded from the Tinker server: {error}. The same "
            "command continues from the last checkpoint."
        ) from error


def _extract(archive: Path, directory: Path, limit: int) -> None:
    """Write the two files of an adapter, wherever they are in the archive, and nothing else."""
    found = set()
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = Path(member.name).name
                if name not in (ADAPTER_CONFIG, ADAPTER_WEIGHTS) or not member.isfile():
                    continue
                if member.size > limit or name in found:
                    raise BadModel(
                        f"The archive of the adapter has {name} of {member.size} bytes, or twice. "
                        "It was not unpacked."
                    )
                member.name = name
                tar.extract(member, directory, filter="data")
                found.add(name)
    except tarfile.TarError as error:
        raise BadModel(f"The archive of the adapter cannot be read: {error}.") from error
    if missing := {ADAPTER_CONFIG, ADAPTER_WEIGHTS} - found:
        raise BadModel(f"The archive of the adapter has no {', '.join(sorted(missing))}.")


def _name_modules(directory: Path) -> None:
    """Add the adapted modules to the configuration, which vLLM and PEFT read, if it has none."""
    file = directory / ADAPTER_CONFIG
    config = json.loads(file.read_bytes())
    if not config.get("target_modules"):
        names = {name.rpartition(".")[2] for name in adapted_modules(directory)}
        file.write_text(json.dumps(config | {"target_modules": sorted(names)}, indent=2) + "\n")
