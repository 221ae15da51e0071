"""Read by the `opentelemetry-instrument` launcher: makes this distro win over any other installed.

The launcher imports it before it starts the agent, and the agent's interpreter takes the first
distro it finds unless these two are set.
"""

import os

from ltrain_instrument.otel_limits import leave_out_misspelt

for _variable in ("OTEL_PYTHON_DISTRO", "OTEL_PYTHON_CONFIGURATOR"):
    os.environ.setdefault(_variable, "ltrain")
leave_out_misspelt()
