"""The folders of datasets, `datasets/<run>/<name>` below LTRAIN_HOME, and what may replace one.

A dataset is the lineage of the versions that were trained on it, so a build replaces another
dataset only on request.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ltrain_instrument.files import path_component
from ltrain_transforms.datasets.manifest import MANIFEST, Manifest
from ltrain_transforms.errors import DatasetExists
from ltrain_transforms.file_digests import read_sealed

IDENTITY = ("run", "mode", "wave", "groups")
"""The parameters of a build's query that identify a dataset."""


def dataset_folder(
    home: Path, run: str, mode: str, part: str | int | None = None, policy: str | None = None
) -> Path:
    """Return the default folder of a dataset: `datasets/<run>/<mode>[-<part>][-<policy>]`.

    Args:
        mode: mode of its executions.
        part: the wave, or the policy version that is trained on the dataset, as `name@number`.
        policy: the policy of the dataset, where the run has several; None: all.
    """
    name = "-".join(str(each) for each in (mode, part, policy) if each is not None)
    return home / "datasets" / path_component(run) / path_component(name)


def list_datasets(home: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folder and the id of each dataset below `home`/datasets."""
    for path, manifest in list_manifests(home):
        yield path, str(manifest["id"])


def list_manifests(home: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the folder and the manifest of each dataset below `home`/datasets."""
    root = home / "datasets"
    for path in sorted([*root.glob(f"*/{MANIFEST}"), *root.glob(f"*/*/{MANIFEST}")]):
        if any(part.startswith(".") for part in path.relative_to(root).parts):
            continue  # a draft
        # without a manifest it is not a dataset; `Dataset.open` raises if the user names it
        if manifest := _read_manifest(path.parent):
            yield path.parent, manifest


def check_replaceable(out: Path, new: Manifest, *, update: bool) -> None:
    """Check that `new` may replace the dataset in `out`, if there is one.

    It may if both have the same rows, or with `update` if both are of the same run, mode and wave.
    """
    if not (out / MANIFEST).exists():
        return
    old = _read_manifest(out)
    same = [old.get("parameters", {}).get(name) == new.parameters.get(name) for name in IDENTITY]
    if old.get("id") == new.id or (update and old and all(same)):
        return
    content = f"dataset {old['id']} ({_describe(old)})" if old else f"an unreadable {MANIFEST}"
    raise DatasetExists(
        f"{out} holds {content}, and this build gives another one, {new.id} "
        f"({_describe({'parameters': new.parameters, 'counts': new.counts})}). Add --replace to "
        "put it in the place of the old one, or choose another folder (`ltrain build --out DIR`)."
    )


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest in a folder; empty if it cannot be read, or is damaged."""
    try:
        manifest = read_sealed(folder / MANIFEST)
        return manifest if "id" in manifest else {}
    except (OSError, ValueError):
        return {}


def _describe(manifest: Mapping[str, Any]) -> str:
    parameters = manifest.get("parameters", {})
    named = [f"{name} {parameters[name]}" for name in IDENTITY if name in parameters]
    return ", ".join([*named, f"{manifest.get('counts', {}).get('executions', '?')} executions"])
