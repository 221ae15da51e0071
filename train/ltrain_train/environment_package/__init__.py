"""A recipe as an environment for others: a package that verifiers loads by its name.

`taskset.py` and `run_agent.py` are parts of the written package; nothing here imports them.
"""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.environment_package.write import BadExport, write_package

open_face(__name__)
