"""A server of the Tinker API at the process border, with a policy that really learns.

The policy is a table of logits, one row for each last token; an adapter is a table that is added.
Requests and answers are those of SDK 0.25.0 and of SkyRL 0.4.0. Faults wait in `faults`, by the
last part of the path: a status, `vanish` (the connection ends before the request has an effect),
`forget` (it ends after), `lose` (the server forgets its training runs before), or `restart` (it
was killed and started again).
"""

import asyncio
import io
import json
import sys
import tarfile
import threading
from collections import defaultdict
from collections.abc import Callable
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save
from tests.tinker_policy import Adapter, Refused, Table, Tensors, token_loss

from ltrain_train.overlays import TINKER

PROTOBUF = "application/x-protobuf"
BACKGROUND = ("_session_heartbeat", "_client_dynamic_config_refresh_loop")
"""The coroutines of a session."""
LORA_ALPHA = 32
"""The scale of every adapter of SkyRL."""


class TinkerServer:
    """Serves one base model on a free port.

    Args:
        sums: whether a loss is the sum over tokens, as documented; else the mean over rows of the
            mean over tokens with a weight, as that of SkyRL's JAX backend.
        clips: whether it clips gradients; SkyRL's does not.
    """

    def __init__(
        self, model: str = "tiny", *, vocab: int = 517, sums: bool = True, clips: bool = True
    ) -> None:
        self.model, self.sums, self.clips = model, sums, clips
        self.base = np.random.default_rng(0).normal(size=(vocab, vocab))
        """Logits of the base by the last token; tests may set them."""
        self.adapters: dict[str, Adapter] = {}
        self.checkpoints: dict[str, Adapter] = {}
        """Saved training runs by `tinker://` path, of training and of sampling."""
        self.samplers: dict[str, str | None] = {}
        """The path of each sampling session; None: the base."""
        self.requests: list[tuple[str, Any]] = []
        """Every request that had an effect: the last part of its path, and its body."""
        self.keys: set[str] = set()
        self.faults: dict[str, list[int | str]] = defaultdict(list)
        self.paths = ["/api/v1/client/config"]
        """The paths that it describes."""
        self.samples_loaded = False
        """Whether it samples an adapter only while its training run is loaded, as SkyRL's does."""
        self.limit = 8
        """Adapters that it holds at most."""
        self.config: dict[str, Any] = {}
        self.tensors: Callable[[Adapter], Tensors] = _tensors
        """Returns the tensors of an adapter's archive by PEFT's names."""
        self._answers: list[bytes | dict[str, Any] | Refused] = []
        self._futures: dict[tuple[str, int], str] = {}
        self._unloaded: set[str] = set()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def names(self, *names: str) -> list[str]:
        """Return the names of the requests that had an effect, in order; of `names` only."""
        return [name for name, _ in self.requests if not names or name in names]

    def lose_runs(self, *, restarted: bool = False) -> None:
        """Forget all training runs, but not what was saved of them.

        A server that was started again knows their names, and fails when it computes.
        """
        self._unloaded |= self.adapters.keys() if restarted else set()
        self.adapters.clear()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        _end_sessions()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, name: str, body: Any) -> bytes | dict[str, Any]:
        """Return the answer to a request: protobuf, or JSON."""
        models = [{"model_name": self.model}]
        with self._lock, np.errstate(all="ignore"):
            plain = {
                "config": lambda: self.config,
                "dynamic_config": dict,
                "healthz": lambda: {"status": "ok"},
                "telemetry": lambda: {"status": "accepted"},
                "session_heartbeat": dict,
                "create_session": lambda: {"session_id": f"session{len(self.requests)}"},
                "get_server_capabilities": lambda: {"supported_models": models},
                "create_sampling_session": lambda: self._open_sampler(body),
                "get_info": lambda: self._describe(body["model_id"]),
                "weights_info": lambda: self._describe_path(body["tinker_path"]),
                "retrieve_future": lambda: self._retrieve(int(body["request_id"])),
                "openapi.json": self._describe_api,
            }  # fmt: skip
            if name in plain:
                answer = plain[name]()
                if name in ("create_session", "create_sampling_session"):
                    self.requests.append((name, body))
                return answer
            return self._promise(name, body)

    def _promise(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Compute the result, and return the id to retrieve it; a retry gets the same id."""
        key = (body.get("model_id", ""), body.get("seq_id") or -1)
        if name == "create_model":
            key = (f"run{len(self.requests)}", 0)
        if name == "asample" or key not in self._futures:
            fields = body if name != "create_model" else body | {"id": key[0]}
            result = (
                Refused(400, f"Model {key[0]} not loaded")
                if key[0] in self._unloaded
                else getattr(self, f"_{name}")(fields)
            )
            self.requests.append((name, body))
            self._answers.append(result)
            self._futures[key] = str(len(self._answers) - 1)
        number = self._futures[key]
        return {"request_id": number, "future_id": number, "model_id": key[0], "status": "pending"}

    def _retrieve(self, number: int) -> bytes | dict[str, Any]:
        answer = self._answers[number]
        if isinstance(answer, Refused):
            raise answer
        return answer

    def _run(self, model_id: str) -> Adapter:
        if model_id not in self.adapters:
            raise Refused(404, "Model not found")
        return self.adapters[model_id]

    def _create_model(self, body: dict[str, Any]) -> dict[str, Any]:
        if body["base_model"] != self.model:
            raise Refused(400, f"Base model {body['base_model']} is not served")
        if len(self.adapters) >= self.limit:
            raise Refused(400, "Maximum number of LoRA adapters reached")
        self.adapters[body["id"]] = Adapter(body["lora_config"]["rank"], np.zeros_like(self.base))
        return {"model_id": body["id"]}

    def _unload_model(self, body: dict[str, Any]) -> dict[str, Any]:
        self._run(body["model_id"])
        del self.adapters[body["model_id"]]
        return {"model_id": body["model_id"]}

    def _describe(self, model_id: str) -> dict[str, Any]:
        rank = self._run(model_id).rank
        data = {"model_name": self.model, "base_model": self.model}
        return {"model_id": model_id, "model_data": data, "is_lora": True, "lora_rank": rank}

    def _saved(self, path: str) -> Adapter:
        if path not in self.checkpoints:
            raise Refused(404, f"Checkpoint not found: {path}")
        return self.checkpoints[path]

    def _describe_path(self, path: str) -> dict[str, Any]:
        return {"base_model": self.model, "is_lora": True, "lora_rank": self._saved(path).rank}

    def _describe_api(self) -> dict[str, Any]:
        names = ["learning_rate", *(["grad_clip_norm"] if self.clips else [])]
        schema: dict[str, Any] = {"properties": {name: {} for name in names}}
        paths: dict[str, Any] = {path: {} for path in self.paths}
        return {"paths": paths, "components": {"schemas": {"AdamParams": schema}}}

    def _load_weights(self, body: dict[str, Any]) -> dict[str, Any]:
        if not self._run(body["model_id"]).is_new:
            raise Refused(400, f"LoadWeights is not permitted with seq_id {body['seq_id']}")
        saved = self._saved(body["path"])
        new = deepcopy(saved) if body["optimizer"] else Adapter(saved.rank, saved.table.copy())
        self.adapters[body["model_id"]] = new
        return {"path": body["path"], "model_id": body["model_id"]}

    def _save(self, body: dict[str, Any], kind: str, name: str) -> str:
        folder = "weights/" if kind == "weights" else ""  # as SkyRL, against the SDK's own layout
        path = f"tinker://{body['model_id']}/{folder}{name}"
        if path in self.checkpoints and not body.get("overwrite"):
            raise Refused(409, f"Checkpoint '{name}' already exists")
        saved = deepcopy(self._run(body["model_id"]))
        saved.gradient, saved.rows = np.zeros_like(saved.table), 0
        self.checkpoints[path] = saved
        self.adapters[body["model_id"]].is_new = False
        return path

    def _save_weights(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"path": self._save(body, "weights", body["path"])}

    def _save_weights_for_sampler(self, body: dict[str, Any]) -> dict[str, Any]:
        name = body.get("path") or f"ss{body['sampling_session_seq_id']}_seq{body['seq_id']}"
        path = self._save(body, "sampler_weights", name)
        if body.get("path"):
            return {"path": path}
        return {
            "sampling_session_id": self._open_sampler({"model_path": path})["sampling_session_id"]
        }

    def _open_sampler(self, body: dict[str, Any]) -> dict[str, Any]:
        path = body.get("model_path")
        if path is not None:
            self._saved(path)
        name = f"sampler{len(self.samplers)}"
        self.samplers[name] = path
        return {"sampling_session_id": name}

    def _log_probs(self, adapter: Adapter | None, inputs: NDArray[Any]) -> Table:
        """Return the log-probabilities of all next tokens after each input: [input, token]."""
        logits = self.base[inputs] + (0 if adapter is None else adapter.table[inputs])
        logits = logits - logits.max(-1, keepdims=True)
        every: Table = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return every

    def _forward_backward(self, body: dict[str, Any]) -> bytes:
        run = self._run(body["model_id"])
        run.is_new = False
        outputs: list[Tensors] = []
        for row in body["data"]:
            inputs, targets = (row[name] % len(self.base) for name in ("tokens", "target_tokens"))
            weights = row.get("weights", np.ones(len(targets)))
            every = self._log_probs(run, inputs)
            log_probs = every[np.arange(len(targets)), targets]
            losses, slopes = token_loss(body["loss_fn"], log_probs, row, body["loss_fn_config"])
            outputs.append({"logprobs": log_probs, "elementwise_loss": losses * weights})
            if body["forward_only"]:
                continue
            share = 1.0 if self.sums else 1 / max(weights.sum(), 1e-9)
            slope = slopes * weights * share
            gradient = -np.exp(every) * slope[:, None]
            gradient[np.arange(len(targets)), targets] += slope
            np.add.at(run.gradient, inputs, gradient)
            run.rows += 1
        return _encode_outputs(outputs)

    def _optim_step(self, body: dict[str, Any]) -> dict[str, Any]:
        run = self._run(body["model_id"])
        run.is_new = False
        return {"metrics": run.update(body["adam_params"], sums=self.sums, clips=self.clips)}

    def _asample(self, body: dict[str, Any]) -> bytes | Refused:
        if body["sampling_session_id"] not in self.samplers:
            raise Refused(404, "Sampling session not found")
        path = self.samplers[body["sampling_session_id"]]
        adapter = None if path is None else self._saved(path)
        run = "" if path is None else path.split("/")[2]
        if run and self.samples_loaded and run not in self.adapters:
            return Refused(400, f"Model {run} not loaded")
        options = body["sampling_params"]
        prompt = np.array(
            [token for chunk in body["prompt"]["chunks"] for token in chunk["tokens"]]
        )
        generator = np.random.default_rng(options.get("seed") or len(self.requests))
        answer = _proto().SampleResponse()
        for _ in range(body["num_samples"]):
            tokens: list[int] = []
            log_probs: list[float] = []
            last, reason = prompt[-1], "LENGTH"
            while reason == "LENGTH" and len(tokens) < options["max_tokens"]:
                every = self._log_probs(adapter, np.array([last]))[0]
                scaled = every / max(options["temperature"], 1e-6)
                chances = np.exp(scaled - scaled.max())
                last = int(generator.choice(len(every), p=chances / chances.sum()))
                tokens.append(last)
                log_probs.append(every[last])
                reason = "STOP" if last in (options.get("stop") or ()) else "LENGTH"
            sequence = answer.sequences.add()
            sequence.tokens = np.array(tokens, np.int32).tobytes()
            sequence.logprobs = np.array(log_probs, np.float32).tobytes()
            sequence.stop_reason = getattr(_proto(), f"STOP_REASON_{reason}")
        if body.get("prompt_logprobs"):
            every = self._log_probs(adapter, prompt[:-1])
            known = every[np.arange(len(prompt) - 1), prompt[1:]]
            answer.prompt_logprobs = np.concatenate([[np.nan], known]).astype(np.float32).tobytes()
        encoded: bytes = answer.SerializeToString()
        return encoded

    def archive(self, run: str, name: str) -> bytes:
        """Return the archive of a sampler's weights, a LoRA in PEFT's layout."""
        saved = self._saved(f"tinker://{run}/{name}")
        config = {"peft_type": "LORA", "r": saved.rank, "lora_alpha": LORA_ALPHA}
        files = {
            "adapter_config.json": json.dumps(config).encode(),
            "adapter_model.safetensors": save(self.tensors(saved), {"format": "pt"}),
        }
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            for file, content in files.items():
                member = tarfile.TarInfo(file)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        return packed.getvalue()


def _end_sessions() -> None:
    """End the SDK's sessions in this process, whose heartbeats would fail as long as it lives."""

    async def end() -> None:
        tasks = [
            each
            for each in asyncio.all_tasks()
            if getattr(each.get_coro(), "__name__", "") in BACKGROUND
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    if module := sys.modules.get("tinker.lib.internal_client_holder"):
        loop = module._internal_client_holder_thread_singleton.get_loop()
        asyncio.run_coroutine_threadsafe(end(), loop).result()


def _tensors(adapter: Adapter) -> Tensors:
    """Return the adapter of the only weight of a fake model; its numbers are those of the table."""
    name, size = "base_model.model.layer", 4
    corner = adapter.table[:size, :size].astype(np.float32)
    down = np.eye(adapter.rank, size, dtype=np.float32)
    up = np.ascontiguousarray((corner @ np.linalg.pinv(down)).astype(np.float32))
    return {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}


def _proto() -> Any:
    TINKER.add()
    from tinker.proto import tinker_public_pb2

    return tinker_public_pb2


def _decode(body: bytes) -> dict[str, Any]:
    """Return a request in protobuf as JSON's would be, with arrays."""
    message = _proto().ForwardBackwardRequest()
    message.ParseFromString(body)
    types = {_proto().DTYPE_FLOAT32: np.float32, _proto().DTYPE_INT64: np.int64}
    data = []
    for row in message.data:
        chunks = [np.frombuffer(each.encoded_text.tokens, np.int32) for each in row.model_input]
        inputs = {
            name: np.frombuffer(tensor.dense, types[tensor.dtype])
            for name, tensor in row.loss_fn_inputs.items()
        }
        data.append({"tokens": np.concatenate(chunks), **inputs})
    names = ("model_id", "seq_id", "loss_fn", "forward_only")
    fields = {name: getattr(message, name) for name in names}
    return fields | {"loss_fn_config": dict(message.loss_fn_config), "data": data}


def _encode_outputs(outputs: list[Tensors]) -> bytes:
    message = _proto().ForwardBackwardOutput(loss_fn_output_type="scalar")
    record = message.loss_fn_outputs.add(num_datums=len(outputs))
    for name in outputs[0]:
        arrays = [each[name].astype(np.float32) for each in outputs]
        ends = np.cumsum([0, *(each.nbytes for each in arrays)])
        tensor = record.fields[name]
        tensor.data = b"".join(each.tobytes() for each in arrays)
        tensor.offsets, tensor.dtype = ends.astype(np.int64).tobytes(), _proto().DTYPE_FLOAT32
    encoded: bytes = message.SerializeToString()
    return encoded


def _handler(server: TinkerServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"  # the SDK leaves connections open, which is a warning
        disable_nagle_algorithm = True

        def log_message(self, *args: object) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            parts = self.path.split("/")
            if parts[-1] == "archive":
                return self._send(302, b"", "", Location=f"{server.url}{self.path[:-7]}download")
            if parts[-1] == "download":
                return self._attempt("download", lambda: server.archive(parts[-4], parts[-2]))
            return self._attempt(parts[-1], lambda: server.answer(parts[-1], {}))

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            is_proto = self.headers["Content-Type"] == PROTOBUF
            body = _decode(content) if is_proto else json.loads(content or b"{}")
            name = self.path.rpartition("/")[2]
            self._attempt(name, lambda: server.answer(name, body))

        def _attempt(self, name: str, act: Callable[[], bytes | dict[str, Any]]) -> None:
            server.keys.add(self.headers.get("X-API-Key") or "")
            fault = server.faults[name].pop(0) if server.faults[name] else None
            if isinstance(fault, int):
                return self._json(fault, {"detail": f"status {fault}"})
            if fault == "vanish":
                return self._vanish()
            if fault in ("lose", "restart"):
                server.lose_runs(restarted=fault == "restart")
            try:
                answer = act()
            except Refused as refused:
                return self._json(refused.status, {"detail": str(refused)})
            if fault == "forget":
                return self._vanish()
            if isinstance(answer, bytes):
                return self._send(200, answer, PROTOBUF)
            return self._json(200, answer)

        def _vanish(self) -> None:
            self.close_connection = True
            self.connection.close()

        def _json(self, status: int, value: Any) -> None:
            self._send(status, json.dumps(value).encode(), "application/json")

        def _send(self, status: int, body: bytes, kind: str, **headers: str) -> None:
            self.send_response(status)
            for key, value in {"Content-Type": kind, **headers}.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
