"""The program of the policy server: `python -m ltrain_train.gateway.tinker_server.program`.

It listens on a unix socket. Its key is in TINKER_API_KEY.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from ltrain_instrument.errors import LtrainError
from ltrain_train.gateway.tinker_server.models import TinkerModels
from ltrain_train.gateway.tinker_server.rendering import Rendering
from ltrain_train.gateway.tinker_server.routes import PolicyRoutes
from ltrain_train.policy import context_length


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tinker-server", allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="of the model, with its tokenizer")
    parser.add_argument("--uds", required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--base-url")
    parser.add_argument("--base-model", required=True)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--runs", type=Path, help="file with its training runs at the server")
    parser.add_argument("--tool-call-parser")
    parser.add_argument("--chat-template")
    return parser.parse_args(arguments)


async def _open(options: argparse.Namespace) -> PolicyRoutes:
    """Return the routes when the base model has been sampled once."""
    rendering = Rendering(
        options.folder,
        options.base_model,
        template=options.chat_template,
        tool_parser=options.tool_call_parser,
    )
    models = await asyncio.to_thread(
        TinkerModels, options.base_url, options.base_model, _log, options.runs
    )
    limits = (await models.start(), options.max_model_len, context_length(options.folder))
    shortest = min(limit for limit in limits if limit)
    return PolicyRoutes(options.served_model_name, models, rendering, shortest)


async def _serve(options: argparse.Namespace) -> None:
    routes = await _open(options)
    _log(f"samples {options.base_model} of {routes.models.base_url}")
    config = uvicorn.Config(
        routes.app(),
        uds=options.uds,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=1,  # an answer may take minutes
    )
    try:
        await uvicorn.Server(config).serve()
    finally:
        routes.models.close()


def _log(line: str) -> None:
    print(f"ltrain: {line}", flush=True)


if __name__ == "__main__":
    try:
        asyncio.run(_serve(_parse(sys.argv[1:])))
    except LtrainError as error:
        sys.exit(f"ltrain: error: {error}")
