"""New weights of a vLLM on a CPU: they are loaded beside its own weights while it answers calls.

vLLM's `reload_weights` takes a model apart and loads it again, and no call runs meanwhile. Most of
that time is spent on copies and on packing each matrix for the CPU, a tenth on reading the files.
Here a second model is loaded and packed in a thread. While no call runs, only its tensors and its
packed matrices take the place of the old ones: all of them, or none if the second model is not
complete.

`reload_weights` also leaves the packed matrix of an output layer that is tied to the embedding as
it was. The second model is loaded as vLLM loads a model at its start, which packs that layer too.
"""

import copy
import os
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from shared_tensors import SharedTensors, digested, open_tensors  # type: ignore[import-not-found]
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.reload.meta import materialize_meta_tensor
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.utils.torch_utils import set_default_torch_dtype

PACKED = "cpu_linear"
"""The attribute of a layer with the function that multiplies by its packed matrix."""
READY, LOADING = "ready", "loading"
"""The states of the second model."""


class StagedWeights(SharedTensors):  # type: ignore[misc]
    """Methods of vLLM's workers (`--worker-extension-cls`), called by /collective_rpc."""

    vllm_config: Any
    _second: "SecondModel | None" = None

    def stage_weights(self, path: str = "", shared: str = "", digest: str = "") -> str:
        """Begin to load weights; return why this model cannot, or ''.

        Args:
            path: folder of the weights.
            shared: message about the weights in a learner's memory, in place of a folder.
            digest: not empty: the digests of the tensors are wanted.
        """
        if reason := _obstacle(self.vllm_config, self.model_runner.get_model()):
            return reason
        if self._second is None:
            self._second = SecondModel(self.vllm_config)
        self._second.begin(Source(path, shared, bool(digest)))
        return ""

    def staged(self) -> str:
        """Return the state of the weights; raise the error that ended their load."""
        assert self._second is not None
        return self._second.state()

    def staged_digests(self) -> dict[str, str]:
        """Return the digests of the loaded tensors; none unless they were wanted."""
        assert self._second is not None
        return self._second.digests

    def swap_weights(self) -> None:
        """Sample with the loaded weights from now on."""
        assert self._second is not None
        self._second.replace(self.model_runner.get_model())
        self.model_runner.reset_lora_state()
        self.model_runner.reset_encoder_cache()
        self.model_runner.reset_mm_cache()


@dataclass(frozen=True, slots=True)
class Source:
    """Where weights are: in a folder, or in a learner's memory."""

    path: str
    shared: str
    """The message about the memory; '': they are in the folder."""
    digest: bool
    """Whether the digests of the tensors are wanted."""


class SecondModel:
    """A model like the worker's own, without memory for weights until a load begins."""

    def __init__(self, vllm_config: Any) -> None:
        self._config = config = copy.copy(vllm_config)
        config.model_config = copy.copy(vllm_config.model_config)
        config.compilation_config = copy.copy(vllm_config.compilation_config)
        config.compilation_config.static_forward_context = {}  # it lists layers by unique names
        dtype = set_default_torch_dtype(config.model_config.dtype)
        with set_current_vllm_config(config), dtype, torch.device("meta"):
            self._model = initialize_model(vllm_config=config)
        self._blank = [(layer, dict(layer._parameters)) for layer in self._model.modules()]
        self._thread = ThreadPoolExecutor(1, initializer=_use_all_cores)
        self.digests: dict[str, str] = {}
        """The digests of the loaded tensors, if the source wants them."""
        self._source: Source | None = None
        self._load: Future[None] | None = None

    def begin(self, source: Source) -> None:
        """Begin a load, unless it has begun; one of other weights ends first."""
        failed = self._load is not None and self._load.done() and self._load.exception()
        if source != self._source or self._load is None or failed:
            self._source = source
            self._load = self._thread.submit(self._read_or_clear, source)

    def state(self) -> str:
        """Return the state of the last load."""
        assert self._load is not None
        if not self._load.done():
            return LOADING
        self._load.result()
        return READY

    def replace(self, model: Any) -> None:
        """Move the loaded weights into `model`, after the end of the load."""
        assert self._load is not None
        self._load.result()
        layers = {name.replace(".base_layer", ""): each for name, each in model.named_modules()}
        pairs = [(layers[name], each) for name, each in self._model.named_modules()]
        parameters = [
            (own._parameters[name], parameter)
            for own, new in pairs
            for name, parameter in new._parameters.items()
            if parameter is not None
        ]
        for own, new in parameters:
            own.data = new.data
        for own, new in pairs:
            if PACKED in new.__dict__:
                setattr(own, PACKED, new.__dict__[PACKED])
        self._load = None
        self._clear()

    def _read_or_clear(self, source: Source) -> None:
        try:
            self._read(source)
        except Exception as error:  # it is raised again, and it would keep the memory in use
            traceback.clear_frames(error.__traceback__)
            self._clear()
            raise

    @torch.no_grad()
    def _read(self, source: Source) -> None:
        self._clear()
        self._allocate()
        self.digests = {}
        expected = {name for name, _ in self._model.named_parameters()}
        tensors = self._open(source)
        if source.digest:
            tensors = digested(tensors, self.digests)
        loaded = self._model.load_weights(tensors)
        if missing := sorted(expected - loaded):
            where = f"'{source.path}'" if source.path else "the learner's memory"
            raise ValueError(f"{where} lacks {missing[0]} and {len(missing) - 1} more weights")
        for layer, _ in self._blank:
            if hasattr(layer, "quant_method"):
                layer.quant_method.process_weights_after_loading(layer)

    def _open(self, source: Source) -> Any:
        config = self._config.model_config
        if source.shared:
            return open_tensors(source.shared, torch.device("cpu"))
        config.model, config.model_weights, config.revision = source.path, "", None
        loader = get_model_loader(self._config.load_config)
        return loader.get_all_weights(config, self._model)

    def _allocate(self) -> None:
        made: dict[int, Any] = {}  # layers may share a parameter
        for layer, blank in self._blank:
            for name, parameter in blank.items():
                if parameter is not None:
                    if id(parameter) not in made:
                        made[id(parameter)] = materialize_meta_tensor(parameter)
                    layer._parameters[name] = made[id(parameter)]

    def _clear(self) -> None:
        for layer, blank in self._blank:
            layer._parameters.update(blank)
            layer.__dict__.pop(PACKED, None)


def _obstacle(vllm_config: Any, model: Any) -> str:
    """Return why the weights of a model cannot be replaced so; '' if they can."""
    if not vllm_config.model_config.enforce_eager:
        return "its layers are compiled"
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        known = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
        if method is not None and type(method) not in known:
            return f"it has layers with {type(method).__name__}"
    return ""


def _use_all_cores() -> None:
    """Run a thread on the cores of the server: vLLM binds that of the worker to one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))
