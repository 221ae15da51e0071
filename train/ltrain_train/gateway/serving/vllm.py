"""Runs vLLM as a child process.

vLLM's admin routes, which replace weights and need no key, are on. So vLLM listens on a unix socket
in a folder that only this user can enter, and on no port. Its own processes use sockets there too.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from ltrain_train.gateway.serving.model_process import ModelProcess
from ltrain_train.gpu import is_usable
from ltrain_train.policy import chat_template_option
from ltrain_train.processes import Children, compile_cache
from ltrain_train.vllm_python import find_python

PROGRAM = Path(__file__).with_name("in_vllm") / "vllm_process.py"
OFFLINE_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment variables that turn off usage reports and downloads."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values of vLLM's --max-lora-rank."""
CPU_MAX_NUM_SEQS = 64
"""Maximum calls in one batch of a CPU, by default."""
EXTENSION = "--worker-extension-cls"
"""The argument with a class of methods for vLLM's workers."""
SHARED = (EXTENSION, "shared_tensors.SharedTensors")
"""The argument with the class, in `in_vllm`, that loads weights from a learner's memory."""
CPU_ARGUMENTS = (
    *("--block-size", "32", "--enforce-eager"),
    *(EXTENSION, "staged_weights.StagedWeights"),
)
"""Arguments on a CPU. vLLM's own block there is 128 tokens, and a shorter common prefix is not
cached; compilation delays the start by a minute; the class is in `in_vllm`. vLLM's own values on a
GPU are right: blocks of 16 tokens, compiled layers and CUDA graphs, with which it samples four to
eight times as fast."""
SLEEP_MODE = "--enable-sleep-mode"
"""The argument with which vLLM can free its memory of the GPU; there is no sleep on a CPU."""
STRUCTURED_OUTPUTS = '{"backend": "xgrammar"}'
"""The grammars that the learner can replay; by default vLLM chooses a backend by the grammar."""
NO_MEDIA = "none.invalid"
"""A domain that does not exist: vLLM fetches a URL in a message only from the domains that it is
started with, and from any domain if there are none."""
FEW_CORES = 2
"""Cores of which vLLM would compute on one only."""
PROCESSES = "VLLM_ENABLE_V1_MULTIPROCESSING"
"""The variable that gives vLLM's worker a process of its own."""
SHARDS = ("--tensor-parallel-size", "-tp")
"""Names of vLLM's option on how many GPUs hold one copy of the weights."""
REPLICAS = ("--data-parallel-size", "-dp")
"""Names of that on how many copies there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """The options of vLLM, apart from the model."""

    dtype: str = "bfloat16"
    max_model_len: int | None = None
    """Maximum tokens of prompt and response together; None: as many as the model allows and the
    memory holds."""
    max_num_seqs: int | None = None
    """Maximum calls in one batch; None: 64 on a CPU, and vLLM's own number on a GPU."""
    kv_cache_gib: int = 1
    """GiB of memory for the KV cache on a CPU."""
    gpus: str = ""
    """The GPUs of vLLM, as in CUDA_VISIBLE_DEVICES; '': those of this process."""
    max_adapters: int = 0
    """Maximum LoRA adapters in the server; 0: it takes none."""
    lora_rank: int = 0
    """Largest rank of these adapters."""
    extra: tuple[str, ...] = ()
    """Further arguments of `vllm serve`; of two values vLLM takes the last one."""
    gpu: bool = field(default_factory=is_usable)
    """Whether vLLM computes on a GPU."""

    @property
    def chat_template(self) -> str | None:
        """The file or text that takes the place of the model's own chat template."""
        return chat_template_option(self.extra)

    @property
    def replicas(self) -> int:
        """Copies of the weights that answer calls; by default as many as the `gpus` hold."""
        return max(1, count_replicas(self.extra, len(self.gpus.split(","))))

    @property
    def sleeps(self) -> bool:
        """Whether vLLM uses the GPU in turn with a learner."""
        return SLEEP_MODE in self.extra

    @property
    def stages(self) -> bool:
        """Whether vLLM loads new weights beside its own while calls run."""
        return not self.gpu and self._has_own_extension

    @property
    def shares(self) -> bool:
        """Whether vLLM can load weights from the memory of a learner.

        It is one process with whole weights; on a GPU it has the learner's GPU, beside the learner.
        """
        copies = self.replicas * count_shards(self.extra)
        same_gpu = not self.gpus and not self.sleeps
        return copies == 1 and self._has_own_extension and (same_gpu or not self.gpu)

    @property
    def _has_own_extension(self) -> bool:
        return EXTENSION not in " ".join(self.extra).replace("_", "-")

    def arguments(self) -> list[str]:
        """Return the arguments of `vllm serve`."""
        return [
            *("--dtype", self.dtype),
            *("--max-model-len", str(self.max_model_len or "auto")),
            *self._device_arguments(),
            *("--generation-config", "vllm"),  # the model's own file would change the sampling
            *("--logprobs-mode", "processed_logprobs"),  # those of the sampled distribution
            *("--structured-outputs-config", STRUCTURED_OUTPUTS),
            *("--allowed-media-domains", NO_MEDIA),
            "--enable-scale-out",  # the route that returns the grammar of a request
            "--disable-uvicorn-access-log",
            *self._adapter_arguments(),
            *self._replica_arguments(),
            *self.extra,
        ]

    def _device_arguments(self) -> list[str]:
        """Return the arguments whose values differ by device."""
        calls = self.max_num_seqs or (None if self.gpu else CPU_MAX_NUM_SEQS)
        limit = ("--max-num-seqs", str(calls)) if calls else ()
        if self.gpu:
            return [*limit, *(SHARED if self.shares else ())]
        return [*limit, *CPU_ARGUMENTS]

    def _replica_arguments(self) -> list[str]:
        """Return the arguments for replicas, behind one server: each server has own adapters."""
        count = self.replicas
        return [REPLICAS[0], str(count), "--api-server-count", "1"] if count > 1 else []

    def _adapter_arguments(self) -> list[str]:
        """Return the arguments for adapters: all that are held fit into one batch."""
        if not self.max_adapters:
            return []
        rank = next((each for each in LORA_RANKS if each >= self.lora_rank), LORA_RANKS[-1])
        held = str(self.max_adapters)
        limits = (*("--max-loras", held), *("--max-cpu-loras", held))
        return ["--enable-lora", *limits, "--max-lora-rank", str(rank)]


class Vllm(ModelProcess):
    """One vLLM server."""

    def __init__(
        self, children: Children, *, name: str, options: VllmOptions, log: Path, sockets: Path
    ) -> None:
        super().__init__(children, "vLLM", name=name, log=log, sockets=sockets)
        self._options = options
        self._python = find_python()

    def warm(self, client: httpx.Client) -> bool:
        """Return whether vLLM has answered a completion."""
        return _answers_completion(client, self.name)

    def command(self, model: Path) -> Sequence[str]:
        """Return the command line."""
        listen = ("--uds", str(self.socket))
        served = ("--served-model-name", self.name)
        command = (str(self._python), str(PROGRAM), "serve", str(model))
        return [*command, *served, *listen, *self._options.arguments()]

    def environment(self) -> dict[str, str | None]:
        """Return the variables that are added to the environment."""
        return {
            **OFFLINE_ENVIRONMENT,
            **_engine_environment(len(os.sched_getaffinity(0)), self._options.replicas),
            **({"CUDA_VISIBLE_DEVICES": self._options.gpus} if self._options.gpus else {}),
            "VLLM_CPU_KVCACHE_SPACE": str(self._options.kv_cache_gib),
            "VLLM_SERVER_DEV_MODE": "1",  # the routes that replace weights
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1" if self._options.max_adapters else None,
            "PYTHONPATH": None,  # it names this environment's packages, not vLLM's
            "TMPDIR": str(self.folder),
            "TORCHINDUCTOR_CACHE_DIR": compile_cache(),
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",  # from an allowed domain to another one
            "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60",  # the gateway closes idle connections first
            "VLLM_RPC_BASE_PATH": str(self.folder),
        }


def _engine_environment(cores: int, replicas: int) -> dict[str, str]:
    """Return variables that run vLLM's worker in the process of its engine, on few cores.

    vLLM binds the threads of a worker process to all cores but one. With one thread that process is
    no faster; its start imports vLLM once more, and its core may be that of another worker. The
    user's own variable comes first. Each replica needs a process.
    """
    if cores > FEW_CORES or replicas > 1:
        return {}
    return {PROCESSES: os.environ.get(PROCESSES, "0")}


def count_shards(arguments: Sequence[str]) -> int:
    """Return how many GPUs hold one copy of the weights."""
    return int(find_option(arguments, *SHARDS) or 1)


def count_replicas(arguments: Sequence[str], gpus: int) -> int:
    """Return how many copies vLLM has: the number in its arguments, or as many as `gpus` hold."""
    return int(find_option(arguments, *REPLICAS) or gpus // count_shards(arguments))


def find_option(arguments: Sequence[str], *names: str) -> float | None:
    """Return the last value of an option, written as one argument or as two; None without it."""
    text = " ".join(arguments).replace("_", "-")  # vLLM takes both
    values = re.findall(rf"(?:^| )(?:{'|'.join(names)})[ =]([\d.]+)(?= |$)", text)
    return float(values[-1]) if values else None


def _answers_completion(client: httpx.Client, model: str) -> bool:
    """Return whether vLLM answers a request; the first one takes seconds longer than later ones."""
    message = {"role": "user", "content": "hello"}
    body = {"model": model, "messages": [message], "max_tokens": 1}
    try:
        return client.post("/v1/chat/completions", json=body, timeout=120).status_code == 200
    except httpx.HTTPError:
        return False
