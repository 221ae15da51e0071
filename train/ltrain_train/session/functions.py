"""Functions of a Python session as a module that worker processes import."""

from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import cloudpickle

from ltrain_instrument.files import make_private, write_file
from ltrain_train.errors import BadRun

MODULE = '''"""Functions of a Python session; `ltrain.train` wrote this file."""

import sys
from pathlib import Path

import cloudpickle

sys.path[:0] = [each for each in {path!r} if each not in sys.path]
functions = cloudpickle.loads(Path(__file__).with_suffix(".pickle").read_bytes())
globals().update(functions)
'''


def write_functions(
    folder: Path, functions: Mapping[str, Callable[..., Any]], path: list[str]
) -> dict[str, str]:
    """Write functions to a module in `folder`; return the reference of each by its name.

    A function of the session, such as one that a notebook defines, is stored with what it uses; one
    of a module is imported again. The module's name has the digest of its content, so that a
    changed function is another agent.

    Args:
        folder: private folder of the module.
        functions: by name.
        path: folders in which the worker processes also look for modules.
    """
    try:
        content = cloudpickle.dumps(dict(functions))
    except Exception as error:  # pickle raises what the objects raise
        names = " and ".join(functions)
        raise BadRun(
            f"The {names} of this session cannot be sent to worker processes: {error}. Create "
            "clients, locks and open files inside the function, or move it into a module and name "
            "it as 'module:function'."
        ) from error
    text = MODULE.format(path=path)
    module = f"session_{sha256(content + text.encode()).hexdigest()[:12]}"
    make_private(folder)
    write_file(folder / f"{module}.pickle", content, 0o600)
    write_file(folder / f"{module}.py", text, 0o600)
    return {name: f"{folder / module}.py:{name}" for name in functions}
