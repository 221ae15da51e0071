"""Tries one library's instrumentor, for `ltrain doctor`: `python -m ltrain_instrument.probe NAME`.

A process of its own, since it imports the library and changes it. Prints what failed, if anything.
"""

import sys
from importlib import import_module

from ltrain_instrument.choice import choices, disabled, wanted
from ltrain_instrument.loading import switch


def main(library: str) -> None:
    """Load what is chosen for the library as an agent would."""
    choice = choices(wanted()[0], disabled())[library]
    for target in choice.library.targets:
        import_module(target)
    if choice.entry is not None:
        choice.entry.load()().instrument(skip_dep_check=True)
    elif choice.taken is not None and choice.taken.switch:
        switch(choice.taken)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except Exception as error:  # foreign code; saying what it raises is the purpose
        sys.exit(f"{type(error).__name__}: {error}")
