"""Selects this distro in the `opentelemetry-instrument` launcher, whatever others are installed.

The launcher imports this module before it starts the agent. Unless these two variables are set, the
agent's interpreter takes the first distro that it finds.
"""

import os

from ltrain_instrument.settings import remove_invalid_limits

for _variable in ("OTEL_PYTHON_DISTRO", "OTEL_PYTHON_CONFIGURATOR"):
    os.environ.setdefault(_variable, "ltrain")
remove_invalid_limits()
