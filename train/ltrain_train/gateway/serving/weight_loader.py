"""Loads full weights into a policy server: from a version's files, or from a learner's memory.

* The memory is used when the version is complete on the disk and has the same tensors. If anything
  about it fails, that learner's files are loaded from then on; one line in the log has the reason.
* The first weights that a server on a CPU reads from files, and the first from each learner's
  memory, are compared with the files by a digest of each tensor.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ltrain_train.gateway.serving.upstream import Upstream, UpstreamAway, UpstreamFailed
from ltrain_train.policy import BadModel, Digests, SharedWeights, find_difference

STAGE_POLL = 0.02
"""Seconds between two questions whether the weights are loaded."""


class WeightsDiffer(UpstreamFailed):
    """The server has loaded a tensor that differs from the version's files."""


@dataclass(frozen=True, slots=True)
class Source:
    """Weights to load: a version's files, and the memory of a learner that has them too."""

    path: Path
    shared: SharedWeights | None = None

    @property
    def arguments(self) -> dict[str, str]:
        """The arguments of the workers' methods."""
        if self.shared is not None:
            return {"shared": self.shared.model_dump_json()}
        return {"path": str(self.path)}

    @property
    def origin(self) -> str:
        """The process that wrote the memory; '' for files."""
        return self.shared.learner if self.shared is not None else ""


class WeightLoader:
    """The loads of one server."""

    def __init__(self, upstream: Upstream, log: Callable[[str], None]) -> None:
        self._upstream, self._log = upstream, log
        self._stages = upstream.stages
        """Whether it loads weights beside its own (`in_vllm/staged_weights.py`)."""
        self._begun: dict[str, str] | None = None
        """The arguments of the load that was begun beside the served weights."""
        self._staged: Source | None = None
        """The weights that are ready in the server; `load` stages others first."""
        self._failed: set[str] = set()
        """The learners whose memory could not be loaded; their files are."""
        self._compared: set[str] = set()
        """The origins whose first weights were equal to the files."""

    def forget(self) -> None:
        """Forget what a server that started again has lost."""
        self._begun = self._staged = None

    async def offer(self, shared: SharedWeights) -> None:
        """Begin to load a learner's memory beside the served weights, if the server can."""
        source = Source(Path(), shared)
        if self._stages and self._reads_memory(source):
            await self._begin(source)

    async def stage(self, source: Source) -> None:
        """Load weights beside those in the server, if it can, while calls run."""
        self._staged = None
        if self._stages:
            self._staged = await self._from_memory_or_files(source, self._stage)

    async def load(self, source: Source, label: str) -> None:
        """Replace the weights of a server without calls in flight, and reset its prefix cache."""
        if self._staged is None or self._staged.path != source.path:
            await self.stage(source)
        self._staged = None
        async with self._upstream.paused():
            if self._stages:
                self._begun = None
                await self._upstream.call_workers("swap_weights")
            else:
                await self._from_memory_or_files(source, self._reload)
            await self._upstream.reset_prefix_caches()
            await self._upstream.set_label(label)

    async def _from_memory_or_files(
        self, source: Source, load: Callable[[Source], Coroutine[Any, Any, None]]
    ) -> Source:
        """Load a learner's memory, or else the files, and return what was loaded."""
        if source.shared is not None and self._reads_memory(source):
            try:
                source.shared.require_tensors_of(source.path)
                await load(source)
                return source
            except WeightsDiffer:
                raise
            except (UpstreamFailed, BadModel) as error:
                self._failed.add(source.origin)
                if isinstance(error, UpstreamAway):
                    raise
                self._log(f"vLLM loads new weights from their files: {error}")
        files = Source(source.path)
        await load(files)
        return files

    def _reads_memory(self, source: Source) -> bool:
        return self._upstream.shares and source.origin not in self._failed

    async def _stage(self, source: Source) -> None:
        try:
            await self._begin(source)
            if not self._stages:
                return
            while await self._upstream.call_workers("staged") == "loading":
                await asyncio.sleep(STAGE_POLL)
            if source.origin not in self._compared:
                await self._compare(source, await self._upstream.call_workers("staged_digests"))
        except UpstreamFailed:
            self._begun = None
            raise

    async def _begin(self, source: Source) -> None:
        arguments = source.arguments | self._digest_argument(source)
        if self._begun == arguments:
            return
        reason = await self._upstream.call_workers("stage_weights", **arguments)
        self._begun = arguments
        if reason:
            self._stages = False
            self._log(f"vLLM loads new weights while calls wait, because {reason}")

    async def _reload(self, source: Source) -> None:
        if source.shared is None:
            await self._upstream.call_workers("reload_weights", weights_path=str(source.path))
            return
        arguments = source.arguments | self._digest_argument(source)
        digests = await self._upstream.call_workers("reload_shared", **arguments)
        if source.origin not in self._compared:
            await self._compare(source, digests)

    def _digest_argument(self, source: Source) -> dict[str, str]:
        return {} if source.origin in self._compared else {"digest": "1"}

    async def _compare(self, source: Source, digests: Digests) -> None:
        """Check that the server has read the tensors of the files."""
        if not digests:
            raise UpstreamFailed("vLLM has returned no digests")
        if name := await asyncio.to_thread(find_difference, digests, source.path):
            raise WeightsDiffer(
                f"vLLM has loaded another tensor {name} than '{source.path}' has. The previous "
                'version stays in service. Set weights = "files" in [serve] if the learner sent it.'
            )
        self._compared.add(source.origin)
