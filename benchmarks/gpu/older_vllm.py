"""The program of vLLM 0.25, in place of `vllm_process.py`, for the gateway of this repository.

vLLM 0.25 is the newest for torch 2.11. It has no label of its weights, and always serves the routes
that the option `--enable-scale-out` turns on later.
"""

import os
import sys
from typing import Any

UNKNOWN = ("--enable-scale-out",)
"""Options of later versions."""


def add_label_routes(app: Any) -> None:
    """Add the routes that read and set the label of the weights."""
    from fastapi import Request

    label = {"weight_version": "default"}

    async def weight_info() -> dict[str, str]:
        return label

    async def update_weight_version(request: Request) -> dict[str, bool]:
        label["weight_version"] = str((await request.json())["new_version"])
        return {"success": True}

    app.add_api_route("/weight_info", weight_info, methods=["GET"])
    app.add_api_route("/update_weight_version", update_weight_version, methods=["POST"])


def extend_admin_routes() -> None:
    """Make vLLM add these routes beside its own admin routes."""
    from vllm.entrypoints import serve

    add_own_routes = serve.register_vllm_dev_api_routers

    def add_routes(app: Any) -> None:
        add_own_routes(app)
        add_label_routes(app)

    serve.register_vllm_dev_api_routers = add_routes


if __name__ == "__main__":
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if each != folder]  # its modules are not vLLM's
    sys.argv[:] = [each for each in sys.argv if each not in UNKNOWN]
    extend_admin_routes()
    from vllm.entrypoints.cli.main import main

    main()
