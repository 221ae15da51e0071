"""The modules of the examples beside this folder, which have the same names in each."""

import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).resolve().parent.parent
DOMAINS = ("text_to_sql", "rag", "calculator")
"""The domains: folders of examples."""


@cache
def load(domain: str, module: str) -> ModuleType:
    """Import a module of an example, such as its `agent`; what it imports is in the same folder."""
    folder = EXAMPLES / domain
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    spec = spec_from_file_location(f"{domain}_{module}", folder / f"{module}.py")
    if domain not in DOMAINS or spec is None or spec.loader is None:
        raise ValueError(f"Unknown domain '{domain}'. Choose from: {', '.join(DOMAINS)}.")
    loaded = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
