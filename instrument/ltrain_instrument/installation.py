"""The place that this ltrain was installed from, for advice on how to install more of it.

`ltrain` on a package index could be another package, so no advice names it there.
"""

import json
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ANY_PLACE = "/path/to/ltrain"
"""A clone or a wheel file, where the installation does not name one that still exists."""


def install_command(extra: str = "") -> str:
    """Return the command that installs ltrain with `extra` from where this one was installed."""
    return _command(_direct_url(), extra)


def upgrade_advice() -> str:
    """Return a sentence on how to replace this ltrain by a newer one."""
    direct_url = _direct_url()
    place = _local_place(direct_url)
    if not place.is_dir():
        return f"Install a newer clone or wheel file: pip install --upgrade {ANY_PLACE}"
    command = _command(direct_url).replace("pip install", "pip install --upgrade", 1)
    return f"Update the clone {place}, then run: {command}"


def _direct_url() -> dict[str, Any]:
    """Return what pip recorded of the installation (PEP 610); {}: it came from an index."""
    # importing it takes a seventh of the time of `ltrain --help`
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        text = distribution("ltrain").read_text("direct_url.json")
        found = json.loads(text or "{}")
    except (PackageNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _command(direct_url: dict[str, Any], extra: str = "") -> str:
    extras = f"[{extra}]" if extra else ""
    url = str(direct_url.get("url", ""))
    if url and not url.startswith("file:"):
        vcs = direct_url.get("vcs_info", {})
        address = f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else url
        return f"pip install {shlex.quote(f'ltrain{extras} @ {address}')}"
    place = _local_place(direct_url)
    requirement = shlex.quote(f"{place if place.exists() else ANY_PLACE}{extras}")
    editable = place.is_dir() and direct_url.get("dir_info", {}).get("editable")
    return f"pip install {'--editable ' if editable else ''}{requirement}"


def _local_place(direct_url: dict[str, Any]) -> Path:
    """Return the clone or the wheel file; `ANY_PLACE` if it came from elsewhere."""
    url = urlsplit(str(direct_url.get("url", "")))
    return Path(unquote(url.path)) if url.scheme == "file" else Path(ANY_PLACE)
