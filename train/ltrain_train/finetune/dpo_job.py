"""The job of TRL's process, and its events."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import TypeAdapter

from ltrain_instrument.files import write_file
from ltrain_train.errors import LearnerFailed
from ltrain_train.overlays import TRL
from ltrain_train.processes import Child, Children, Command, JsonChild

POLL = 0.5
"""Seconds between two checks whether a process without events has died."""
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DpoJob:
    """The job of TRL's process."""

    base: Path
    """Directory of full weights, with the tokenizer."""
    adapter: Path | None
    """Adapter to start from; None: a new one, or all weights."""
    out: Path
    """Directory of the result, which is not there yet."""
    merged: bool
    """Whether the result of an adapter is merged weights."""
    pairs: Path
    """Parquet file of `prompt_ids`, `chosen_ids` and `rejected_ids`."""
    held_out: Path | None
    """Such a file of pairs that are only measured."""
    lora_rank: int
    lora_alpha: int
    dtype: Literal["bf16", "fp32"]
    """Precision of written weights, and of the computation on a GPU."""
    learning_rate: float
    gradient_clip: float
    beta: float
    epochs: int
    pairs_per_step: int
    micro_batch: int
    """Pairs that go through the model at once."""
    seed: int

    def write(self, file: Path) -> None:
        """Write the job to a file."""
        write_file(file, JOBS.dump_json(self).decode())

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read the job from a file."""
        return cls(**{name: getattr(JOBS.validate_json(file.read_bytes()), name) for name in
                      cls.__slots__})  # fmt: skip


JOBS = TypeAdapter(DpoJob)


def run_job(
    job: DpoJob, file: Path, log: Path, children: Children, *, hang_timeout: float
) -> Iterator[dict[str, Any]]:
    """Run a job in a process and yield its events but the last, `done`.

    Args:
        file: the new file of the job.
        log: file of the process's output.
        hang_timeout: seconds without an event after which the process counts as hung.
    """
    trl = TRL.find()
    job.write(file)

    def start(_: int, events: int) -> Child:
        argv = [sys.executable, "-c", START, str(trl), str(file), str(events)]
        command = Command(argv=argv, env=ENVIRONMENT, log=log, pass_fds=(events,))
        return children.start("DPO trainer", command)

    trainer = JsonChild(start)
    with ExitStack() as stack:
        stack.callback(trainer.close)
        stack.callback(trainer.process.stop)
        for event in _read_events(trainer, hang_timeout, log):
            if event["kind"] == "done":
                return
            if event["kind"] == "error":
                raise LearnerFailed(f"The DPO trainer failed: {event['error']}. Its log is {log}.")
            yield event
        trainer.process.wait()
        trainer.process.check()
        raise LearnerFailed(f"The DPO trainer ended without a result. Its log is {log}.")


START = """
import sys
sys.path.append(sys.argv[1])  # last, so that the folder of TRL replaces no other package
from ltrain_train.finetune.dpo_trainer import main
main(sys.argv[2], int(sys.argv[3]))
"""


def _read_events(trainer: JsonChild, hang_timeout: float, log: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a trainer until it closes its pipe."""
    last = time.monotonic()
    with suppress(EOFError):
        while True:
            if trainer.poll(POLL):
                yield json.loads(trainer.receive())
                last = time.monotonic()
            elif time.monotonic() - last > hang_timeout:
                raise LearnerFailed(
                    f"The DPO trainer hangs: it has made no progress for {hang_timeout:.0f} s. Its "
                    f"log is {log}. If it is only slow, raise train.hang_timeout."
                )
