"""vLLM as a child process: started, warmed up, watched, stopped.

Its admin routes, which have no key, are on: they replace weights. So it listens on a unix socket in
a folder that only this user can enter, and on no port. Its own processes talk over sockets there.
"""

import getpass
import os
import re
import signal
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from ltrain_train.gateway.vllm_python import find_python
from ltrain_train.process import Child, ChildDied, Children
from ltrain_train.scratch import scratch_path

MODULE = "vllm.entrypoints.cli.main"
START = 900.0
"""Seconds until it must answer; a large model is read from disk first."""
SWITCHED_OFF = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""No reports, no downloads."""
SOCKET = "http"
"""Of its folder: where vLLM answers."""
SOCKET_NAME = 36
"""Bytes of the longest name of a socket in that folder: vLLM's own are UUIDs."""

FIRST_ERROR = re.compile(
    r"^(?:\([^)]*\) ERROR [^]]*\] )?((?:\w+\.)*\w+(?:Error|Exception): .+)$", re.M
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """How vLLM is started, apart from the model."""

    dtype: str = "bfloat16"
    max_model_len: int = 1024
    """Tokens of prompt and answer together."""
    max_num_seqs: int = 64
    """Calls that are computed together."""
    kv_cache_gib: int = 1
    """Memory for keys and values, on a CPU."""
    block_size: int = 32
    """Tokens; a shorter common prefix is not cached. vLLM's default on a CPU is 128."""
    extra: tuple[str, ...] = ()
    """Arguments passed on to `vllm serve`."""

    def arguments(self) -> list[str]:
        return [
            *("--dtype", self.dtype),
            *("--max-model-len", str(self.max_model_len)),
            *("--max-num-seqs", str(self.max_num_seqs)),
            *("--block-size", str(self.block_size)),
            *("--generation-config", "vllm"),  # the model's own file would change the sampling
            *("--logprobs-mode", "processed_logprobs"),  # of the distribution sampled from
            "--enforce-eager",
            "--disable-uvicorn-access-log",
            *self.extra,
        ]


class Vllm:
    """One vLLM server; each start has a folder of its own for sockets, below `sockets`."""

    def __init__(
        self, children: Children, *, name: str, options: VllmOptions, log: Path, sockets: Path
    ) -> None:
        self.name = name
        """What it serves the model under."""
        self.log = log
        self._children = children
        self._options = options
        self._python = find_python()
        self._child: Child | None = None
        self._folder = scratch_path("vllm", below=sockets, socket_name=SOCKET_NAME)

    @property
    def socket(self) -> Path:
        """Where it answers, the same after each start."""
        return self._folder / SOCKET

    @property
    def child(self) -> Child:
        if self._child is None:
            raise RuntimeError("vLLM has not been started")
        return self._child

    def start(self, model: Path) -> None:
        """Start it with a model and wait until it has answered a first request.

        Raises:
            ChildDied: when it ends, or is not ready in time; with its log's last lines.
        """
        logged = self.log.stat().st_size if self.log.exists() else 0
        try:
            with self._client() as client:
                self._child = self._children.start(
                    "vLLM",
                    self._command(model),
                    env=self._environment(),
                    log=self.log,
                    ready=lambda: (
                        _accepts(self.socket) and _healthy(client) and _warm(client, self.name)
                    ),
                    timeout=START,
                    scratch=self._folder,
                )
        except ChildDied as death:
            cause = _cause(self.log, logged)
            raise ChildDied(
                f"{death}\nThe first error in it: {cause}" if cause else str(death)
            ) from death

    def kill(self) -> None:
        """End it at once: whoever watches it sees a death."""
        if self.child.alive:
            os.killpg(self.child.pid, signal.SIGKILL)

    def _client(self) -> httpx.Client:
        transport = httpx.HTTPTransport(uds=str(self.socket))
        return httpx.Client(transport=transport, base_url="http://vllm", timeout=5, trust_env=False)

    def _command(self, model: Path) -> Sequence[str]:
        at = ("--uds", str(self.socket))
        named = ("--served-model-name", self.name)
        launched = (str(self._python), "-m", MODULE, "serve", str(model))
        return [*launched, *named, *at, *self._options.arguments()]

    def _environment(self) -> dict[str, str | None]:
        return {
            **SWITCHED_OFF,
            "VLLM_CPU_KVCACHE_SPACE": str(self._options.kv_cache_gib),
            "VLLM_SERVER_DEV_MODE": "1",  # the routes that replace weights
            "PYTHONPATH": None,  # of this environment, whose packages are not vLLM's
            "TMPDIR": str(self._folder),
            "TORCHINDUCTOR_CACHE_DIR": _compiled(),  # in TMPDIR it would be lost at each start
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60",  # so that the gateway closes idle ones first
            "VLLM_RPC_BASE_PATH": str(self._folder),
        }


def _cause(log: Path, start: int) -> str | None:
    """Give the first error in a log: vLLM's last lines only say that there was one."""
    with log.open("rb") as opened:
        opened.seek(start)
        text = opened.read().decode(errors="replace")
    found = FIRST_ERROR.search(text)
    return found.group(1) if found else None


def _compiled() -> str:
    """Return where torch keeps what it compiled, on this machine, for this user."""
    kept = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return kept or str(Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}")


def _accepts(path: Path) -> bool:
    """Tell whether a server listens on a socket; httpx leaves one open where none does."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return False
    return True


def _healthy(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.HTTPError:
        return False


def _warm(client: httpx.Client, model: str) -> bool:
    """Answer a first request, which takes seconds longer than those after it."""
    message = {"role": "user", "content": "hello"}
    body = {"model": model, "messages": [message], "max_tokens": 1}
    try:
        return client.post("/v1/chat/completions", json=body, timeout=120).status_code == 200
    except httpx.HTTPError:
        return False
