"""Draws faults from a seed, and does them to the processes and files of a run.

A fault has a kind, a process or file, a phase of a wave, and a length. Each wave of a run has one.
"""

import random
import resource
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.chaos.driver import Project, Run

PROCESSES = {
    "run": ("-m ltrain run",),
    "collector": ("-m ltrain up",),
    "gateway": ("-m ltrain serve",),
    "guard": ("-m ltrain serve", "guard.py"),
    "vllm": ("fake_vllm.py",),
    "learner": ("-m ltrain_train.learner",),
    "worker": ("-m ltrain_train.workers.worker",),
}
"""Words in the command line of each process."""
SERVICES = [name for name in PROCESSES if name != "worker"]
"""The processes whose faults are not the agent's."""
PHASES = ("generate", "settle", "build", "train", "load")
FILES = ["attempts.jsonl", "checkpoints/*/*/*"]
"""Files of a run, of which the newest is damaged."""
STEPS = (86_400, -86_400, 3_600, -3_600)
"""Seconds by which the wall clock steps."""
ENDING = {(kind, name) for kind in ("kill", "files") for name in ("run", "learner")}
"""The faults after which the run may end with a sentence: the same command goes on."""
SHORT, LONG = (0.5, 2.0, 5.0), (5.0, 30.0, 90.0)
"""Lengths in seconds, of drawn faults and of those that are done in turn."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens in one wave."""

    kind: str
    """`kill`, `stop` (for some seconds), `files` (no further one can be opened for some seconds),
    `clock` (a step of it), `damage` (the run is killed, and a byte of a file exchanged), or `full`
    (the disk of the home has no room for some seconds)."""
    target: str
    """The process, the file or the disk."""
    phase: str
    seconds: float
    """The length; of a step of the clock, its size."""

    @property
    def may_end_run(self) -> bool:
        return self.kind in ("damage", "full") or (self.kind, self.target) in ENDING


def draw(seed: int, count: int) -> list[Fault]:
    """Return the faults of a seed."""
    source, faults = random.Random(seed), list[Fault]()
    for _ in range(count):
        kind = source.choice(("kill", "kill", "stop", "stop", "files", "clock", "damage", "full"))
        own = {"clock": ["wall"], "damage": FILES, "stop": [*PROCESSES], "full": ["home"]}
        target = source.choice(own.get(kind, SERVICES))
        if kind == "kill" and sum(each.kind == kind and each.target == target for each in faults):
            kind = "stop"  # a service that ends three times in ten minutes is not started again
        size = source.choice(STEPS if kind == "clock" else SHORT)
        faults.append(Fault(kind, target, source.choice(PHASES), size))
    return faults


class Clock:
    """The wall clock of a project's processes, which can step."""

    def __init__(self, folder: Path) -> None:
        """Compile the library that the processes preload."""
        self._offset, library = folder / "offset", folder / "clock_shim.so"
        source = Path(__file__).with_name("clock_shim.c")
        command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source)]
        subprocess.run(command, check=True)
        self._offset.write_bytes(struct.pack("q", 0))
        self.environ = {"LD_PRELOAD": str(library), "CLOCK_SHIM": str(self._offset)}

    def step(self, seconds: int) -> None:
        with self._offset.open("r+b") as file:
            (before,) = struct.unpack("q", file.read())
            file.seek(0)
            file.write(struct.pack("q", before + seconds))


def every_fault() -> list[Fault]:
    """Return the kill and the stops of each process in each phase."""
    faults = [("kill", 0.0), *(("stop", seconds) for seconds in LONG)]
    return [
        Fault(kind, target, phase, seconds)
        for kind, seconds in faults
        for phase in PHASES
        for target in (PROCESSES if kind == "stop" else SERVICES)
    ]


def survive(faults: Sequence[Fault], project: Project, clock: Clock) -> None:
    """Check that a run with a fault in each wave, after the first, ends as a run without any."""
    project.environ |= clock.environ
    run, may_end = project.start(), False
    for fault in faults:
        if (wave := max(1, len(project.waves()))) > len(faults):
            break  # it went on during a long fault
        project.await_phase(run, wave, fault.phase)
        while run.ended and run.end() != 0:
            assert may_end, run.text
            run, may_end = project.start(), False
            project.await_phase(run, wave, fault.phase)
        if run.ended:
            break
        print(f"wave {wave}: {fault}", flush=True)
        do(fault, project, run, clock)
        may_end |= fault.may_end_run
    while run.end() != 0:
        assert may_end, run.text
        run, may_end = project.start(), False
    project.check()


def do(fault: Fault, project: Project, run: Run, clock: Clock) -> None:
    """Do a fault; return when its length is over."""
    if fault.kind == "clock":
        clock.step(int(fault.seconds))
    elif fault.kind == "full":
        with _full(project.file("ballast")):
            time.sleep(fault.seconds)
    elif fault.kind == "damage":
        run.process.kill()
        run.process.wait()
        files = [each for each in project.file("runs/chaos").glob(fault.target) if each.is_file()]
        if files:
            _damage(max(files, key=lambda file: file.stat().st_mtime_ns))
    else:
        process = _find(project, run, fault.target)
        with suppress(psutil.NoSuchProcess):
            if fault.kind == "kill":
                process.kill()
            else:
                with _suspended(process) if fault.kind == "stop" else _without_files(process):
                    time.sleep(fault.seconds)


def _find(project: Project, run: Run, name: str) -> psutil.Process:
    if name == "run":
        return psutil.Process(run.process.pid)
    words = [word for word in PROCESSES[name] if word != "guard.py"]
    found: psutil.Process = project.find(*words, guard=name == "guard")
    return found


@contextmanager
def _suspended(process: psutil.Process) -> Iterator[None]:
    process.suspend()
    try:
        yield
    finally:
        process.resume()


@contextmanager
def _without_files(process: psutil.Process) -> Iterator[None]:
    """Let the process open no further file in the block."""
    before = process.rlimit(resource.RLIMIT_NOFILE)
    process.rlimit(resource.RLIMIT_NOFILE, (process.num_fds(), before[1]))
    try:
        yield
    finally:
        process.rlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def _full(ballast: Path) -> Iterator[None]:
    """Leave no room on the disk of a file in the block."""
    try:
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass
        yield
    finally:
        ballast.unlink()


def _damage(path: Path) -> None:
    """Exchange a byte in the middle of a file."""
    with path.open("r+b") as file:
        middle = path.stat().st_size // 2
        file.seek(middle)
        (byte,) = file.read(1) or b" "
        file.seek(middle)
        file.write(bytes([byte ^ 0x04]))
