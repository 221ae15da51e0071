"""The number of modules that frequent imports load: each process pays them at its start."""

import subprocess
import sys

import pytest

PRINT_MODULES = """
import sys
print(sum(name.partition(".")[0].startswith("ltrain") for name in sys.modules))
"""

SQL = """
from ltrain.cli import app
app(["sql", "--help"], standalone_mode=False)
from ltrain_collector.query_output import write_result
"""

UP = """
import ltrain.cli
from ltrain_collector.server import Ports, serve
"""


@pytest.mark.parametrize(
    ("code", "bound"),
    [
        pytest.param("import ltrain_train.gateway.client", 20, id="gateway client"),
        pytest.param("import ltrain_train.workers.worker", 36, id="worker"),
        pytest.param("from ltrain_transforms.recipe import Recipe", 35, id="recipe"),
        pytest.param(SQL, 70, id="ltrain sql"),
        pytest.param(UP, 126, id="ltrain up"),
    ],
)
def test_an_import_loads_few_modules(code: str, bound: int) -> None:
    """Hold the number of ltrain's modules; a bound is 10 % above the measured number."""
    done = subprocess.run(
        [sys.executable, "-c", code + PRINT_MODULES], capture_output=True, text=True, check=True
    )
    assert int(done.stdout.split()[-1]) <= bound
