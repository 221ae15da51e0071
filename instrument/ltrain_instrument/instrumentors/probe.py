"""Tests one library's instrumentor, for `ltrain doctor`.

Command: `python -m ltrain_instrument.instrumentors.probe NAME`. It runs in a process of its own,
because it imports and changes the library. It prints the error, if there is one.
"""

import sys
from importlib import import_module

from ltrain_instrument.instrumentors.choice import (
    choose_instrumentors,
    disabled_instrumentations,
    requested_providers,
)
from ltrain_instrument.instrumentors.library import find_function


def main(library: str) -> None:
    """Load the instrumentor that an agent would load for the library."""
    choice = choose_instrumentors(requested_providers()[0], disabled_instrumentations())[library]
    for module_name in choice.library.modules:
        import_module(module_name)
    if choice.entry is not None:
        choice.entry.load()().instrument(skip_dep_check=True)
    elif choice.instrumentor is not None and choice.instrumentor.switch:
        find_function(choice.instrumentor.switch)()


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except Exception as error:  # third-party code may raise anything; the error is the output
        sys.exit(f"{type(error).__name__}: {error}")
