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
from tests.chaos.driver import Project, Run, until

PROCESSES = {
    "run": ("-m ltrain run",),
    "collector": ("-m ltrain up",),
    "gateway": ("-m ltrain serve",),
    "guard": ("-m ltrain serve", "guard.py"),
    "vllm": ("vllm_process.py",),
    "learner": ("-m ltrain_train.learner",),
    "worker": ("-m ltrain_train.workers.worker",),
}
"""Words in the command line of each process."""
SERVICES = [name for name in PROCESSES if name != "worker"]
"""The processes whose faults are not the agent's."""
PHASES = ("generate", "settle", "build", "train", "load")
FILES = ["attempts.jsonl", "checkpoints/*/*/*"]
"""Files of a run, of which the newest is damaged."""
KINDS = (
    *("clock", "damage", "files", "full", "kill", "kill", "read-only", "slow", "stop", "stop"),
)
STEPS = (86_400, -86_400, 3_600, -3_600)
"""Seconds by which the wall clock steps."""
ENDING = {(kind, name) for kind in ("kill", "files") for name in ("run", "learner")}
"""The faults after which the run may end with a sentence: the same command goes on."""
READ_DELAY = 0.05
"""Seconds before each read of a slow process."""
SHORT, LONG = (0.5, 2.0, 5.0), (5.0, 30.0, 90.0)
"""Lengths in seconds, of drawn faults and of those that are done in turn."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens in one wave."""

    kind: str
    """`kill`, `stop` (for some seconds), `files` (no further one can be opened for some seconds),
    `clock` (a step of it), `damage` (the run is killed, and a byte of a file exchanged), `full`
    (the disk of the home has no room for some seconds), `read-only` (that disk lets nobody open a
    file for writing for some seconds), or `slow` (each read of a process is late for some seconds).
    """
    target: str
    """The process, the file or the disk."""
    phase: str
    seconds: float
    """The length; of a step of the clock, its size."""

    @property
    def may_end_run(self) -> bool:
        ends = self.kind in ("damage", "full", "read-only")
        return ends or (self.kind, self.target) in ENDING


def draw(seed: int, count: int, kinds: Sequence[str] = KINDS) -> list[Fault]:
    """Return the faults of a seed, of some kinds."""
    source, faults = random.Random(seed), list[Fault]()
    for _ in range(count):
        kind = source.choice(kinds)
        own = {"clock": ["wall"], "damage": FILES, "full": ["home"], "read-only": ["home"]}
        own |= {each: [*PROCESSES] for each in ("stop", "slow")}
        target = source.choice(own.get(kind, SERVICES))
        size = source.choice(STEPS if kind == "clock" else SHORT)
        faults.append(Fault(kind, target, source.choice(PHASES), size))
    return faults


class Shim:
    """The library that a project's processes preload: it steps the clock and slows reads."""

    def __init__(self, folder: Path) -> None:
        """Compile it."""
        self._file, library = folder / "fault", folder / "fault_shim.so"
        source = Path(__file__).with_name("fault_shim.c")
        command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source)]
        subprocess.run(command, check=True)
        self._offset = 0
        self._file.touch()
        self._write()
        self.environ = {"LD_PRELOAD": str(library), "FAULT_SHIM": str(self._file)}

    def step_clock(self, seconds: int) -> None:
        """Step the wall clock of all processes."""
        self._offset += seconds
        self._write()

    @contextmanager
    def slow_reads(self, process: int) -> Iterator[None]:
        """Delay each read of a process, of files and of sockets, in the block."""
        self._write(process, READ_DELAY)
        try:
            yield
        finally:
            self._write()

    def _write(self, process: int = 0, delay: float = 0.0) -> None:
        with self._file.open("r+b") as file:  # the processes have mapped it
            file.write(struct.pack("qqq", self._offset, process, int(delay * 1e9)))


def every_fault() -> list[Fault]:
    """Return the kill and the stops of each process in each phase."""
    faults = [("kill", 0.0), *(("stop", seconds) for seconds in LONG)]
    return [
        Fault(kind, target, phase, seconds)
        for kind, seconds in faults
        for phase in PHASES
        for target in (PROCESSES if kind == "stop" else SERVICES)
    ]


def survive(faults: Sequence[Fault], project: Project, shim: Shim) -> None:
    """Check that a run with a fault in each wave, after the first, ends as a run without any."""
    project.environ |= shim.environ
    run, may_end, wave = project.start(), False, 0
    for number, fault in enumerate(faults):
        wave = max(wave + 1, len(project.waves()))
        if wave >= project.updates:  # it went on during long faults
            print(f"{len(faults) - number} of {len(faults)} faults were not done", flush=True)
            break
        project.await_phase(run, wave, fault.phase)
        while run.ended and run.end() != 0:
            assert may_end, run.text
            run, may_end = project.start(), False
            project.await_phase(run, wave, fault.phase)
        if run.ended:
            break
        print(f"wave {wave}: {fault}", flush=True)
        do(fault, project, run, shim)
        may_end |= fault.may_end_run
    while run.end() != 0:
        assert may_end, run.text
        run, may_end = project.start(), False
    project.check()


def do(fault: Fault, project: Project, run: Run, shim: Shim) -> None:
    """Do a fault; return when its length is over."""
    if fault.kind == "clock":
        shim.step_clock(int(fault.seconds))
    elif fault.kind == "full":
        with _full(project.file("ballast")):
            time.sleep(fault.seconds)
    elif fault.kind == "read-only":
        with _read_only(project):
            time.sleep(fault.seconds)
    elif fault.kind == "damage":
        run.process.kill()
        run.process.wait()
        files = [each for each in project.file("runs/chaos").glob(fault.target) if each.is_file()]
        if files:
            _damage(max(files, key=lambda file: file.stat().st_mtime_ns))
    else:
        process = _find(project, run, fault.target)
        if process is None:
            return  # the run has ended of an earlier fault
        during = {"stop": _suspended, "files": _without_files}
        with suppress(psutil.NoSuchProcess):
            if fault.kind == "kill":
                process.kill()
            elif fault.kind == "slow":
                with shim.slow_reads(process.pid):
                    time.sleep(fault.seconds)
            else:
                with during[fault.kind](process):
                    time.sleep(fault.seconds)


def _find(project: Project, run: Run, name: str) -> psutil.Process | None:
    """Wait for a process; return None if the run ends before there is one."""
    if name == "run":
        return psutil.Process(run.process.pid)
    words = [word for word in PROCESSES[name] if word != "guard.py"]
    found: psutil.Process | bool = until(
        lambda: project.look_for(*words, guard=name == "guard") or run.ended, f"the {name}"
    )
    return None if isinstance(found, bool) else found


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


@contextmanager
def _read_only(project: Project) -> Iterator[None]:
    """Let nobody open a file of the home for writing in the block.

    Files that are open for writing stay so: the kernel makes no disk read-only that has some.
    """
    home = str(project.home)
    subprocess.run([*project.within, "mount", "--bind", "--options", "ro", home, home], check=True)
    try:
        yield
    finally:
        subprocess.run([*project.within, "umount", "--lazy", home], check=True)


def _damage(path: Path) -> None:
    """Exchange a byte in the middle of a file."""
    with path.open("r+b") as file:
        middle = path.stat().st_size // 2
        file.seek(middle)
        (byte,) = file.read(1) or b" "
        file.seek(middle)
        file.write(bytes([byte ^ 0x04]))
