"""Read by the `opentelemetry-instrument` launcher: makes this distro win over any other installed.

The launcher imports it before it starts the agent, and the agent's interpreter takes the first
distro it finds unless these two are set.
"""

import os

for _variable in ("OTEL_PYTHON_DISTRO", "OTEL_PYTHON_CONFIGURATOR"):
    os.environ.setdefault(_variable, "ltrain")
