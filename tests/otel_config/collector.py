"""Collector configurations as the Collector reads them: several files merged."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2] / "otel-config"
FOLDER = ROOT / "collector"
COMBINATIONS = {
    "agent": ("agent",),
    "agent, balanced": ("agent", "agent-balanced"),
    "gateway to clickhouse": ("gateway", "to-clickhouse"),
    "gateway to clickhouse and s3": ("gateway", "to-clickhouse", "to-s3"),
    "gateway to ltrain": ("gateway", "to-ltrain"),
}
"""Which files make a whole configuration, in the order of the command line."""
KINDS = ("extensions", "receivers", "processors", "exporters")


def config(name: str) -> dict[str, Any]:
    """Return the configuration of a combination of files."""
    whole: dict[str, Any] = {}
    for part in COMBINATIONS[name]:
        whole = laid_over(whole, yaml.safe_load((FOLDER / f"{part}.yaml").read_text()))
    return whole


def laid_over(below: Any, above: Any) -> Any:
    """Merge as the Collector does: mappings key by key, anything else is replaced."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return below | {key: laid_over(below.get(key), value) for key, value in above.items()}


def unknown(section: Any, options: Any, where: str = "") -> list[str]:
    """Return the paths in `section` that `options` do not allow, or not with this value."""
    if isinstance(section, dict) and isinstance(options, dict):
        found: list[str] = []
        for key, value in section.items():
            known = options.get(key, options.get("*"))
            path = f"{where}.{key}".lstrip(".")
            found += [path] if known is None else unknown(value, known, path)
        return found
    if isinstance(section, list) and isinstance(options, list):
        return [one for each in section for one in unknown(each, options[0], where)]
    if isinstance(options, str):
        return [] if str(section) in options.split(" | ") else [where]
    return [] if options is True and not isinstance(section, list | dict) else [where]


def variables(text: str) -> dict[str, str | None]:
    """Return each environment variable that a configuration reads, and its default."""
    found = re.findall(r"\$\{env:(\w+)(?::-([^}]*))?\}", text)
    with_default = set(re.findall(r"\$\{env:(\w+):-", text))
    return {name: default if name in with_default else None for name, default in found}


def ports(section: dict[str, Any]) -> dict[str, int]:
    """Return the port of each receiver's protocol, by `receiver.protocol`."""
    return {
        f"{name}.{protocol}": int(door["endpoint"].rpartition(":")[2])
        for name, receiver in section["receivers"].items()
        for protocol, door in receiver["protocols"].items()
    }
