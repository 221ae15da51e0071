"""Starts a real run, with a fake vLLM, whose processes tests can kill."""

import getpass
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import psutil

from ltrain_train.processes import free_port
from ltrain_train.rollout.attempt_log import read_entry
from ltrain_train.runs.journal import Journal, Wave
from ltrain_transforms.datasets import Dataset

HERE = Path(__file__).parent
TESTS = HERE.parent
WAIT = 600.0
"""Seconds to wait for events that take ten on an idle machine."""
SHARED = (f"torchinductor_{getpass.getuser()}", f"torchinductor_uid_{os.getuid()}")
"""What torch stores in the temporary folder for all processes of this user."""
WAVE = 16
"""Rollouts in a wave."""


def until(condition: Callable[[], Any], what: str, seconds: float = WAIT) -> Any:
    """Wait for a true value of `condition` and return it."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)
    return result


@dataclass
class Run:
    """One `ltrain run` and its output."""

    process: subprocess.Popen[bytes]
    output: Path
    wait: float = WAIT
    """Seconds to wait for an event of it."""

    @property
    def text(self) -> str:
        return self.output.read_text()

    def line(self, words: str) -> None:
        """Wait until it has printed `words`."""
        until(lambda: words in self.text or self.ended, f"'{words}'", self.wait)
        assert words in self.text, self.text

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def end(self) -> int:
        """Wait for its end and return the exit status."""
        status = self.process.wait(self.wait)
        assert "Traceback" not in self.text, self.text
        return status

    def finish(self) -> None:
        """Wait for its end, which must be a good one."""
        assert self.end() == 0, self.text


@dataclass
class Project:
    """A folder with an agent, tasks, a recipe and a tiny policy; it identifies its processes."""

    folder: Path
    updates: int
    """Updates of the recipe: each is one wave, and each kill happens in a wave of its own."""
    temporary: Path
    """Folder of its processes' temporary files."""
    within: Sequence[str] = ()
    """A command prefix that runs a command in a namespace of its own."""
    root: Path = Path("/")
    """Path through which the files of that namespace are visible."""
    source: Path = HERE / "project"
    """Folder of its agent, its reward and its recipe."""
    wave: int = WAVE
    """Rollouts in a wave."""
    wait: float = WAIT
    """Seconds to wait for an event of a run."""
    runs: list[Run] = field(default_factory=list)
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder / ".ltrain"

    def file(self, name: str) -> Path:
        """Return the path of a file of the home."""
        return self.root / self.home.relative_to("/") / name

    def prepare(self, model: Path) -> None:
        """Write everything that a run needs."""
        shutil.copytree(self.source, self.folder, dirs_exist_ok=True)
        shutil.copy(HERE / "project" / "chaos_agent.py", self.folder)
        shutil.copytree(model, self.folder / "tiny")
        recipe = self.folder / "ltrain.toml"
        recipe.write_text(recipe.read_text().replace("updates = 2", f"updates = {self.updates}"))
        tasks = [{"id": f"t{number}", "input": f"w{number} w7"} for number in range(8)]
        text = "".join(f"{json.dumps(task)}\n" for task in tasks)
        (self.folder / "tasks.jsonl").write_text(text)
        python = self.folder / "python"
        python.write_text(
            f'#!/bin/sh\n[ "$1" = -I ] && exit 0\n'
            f"[ -e {self.folder}/away ] && rm {self.folder}/away && sleep 30\n"
            f'exec {sys.executable} {TESTS / "fake_vllm.py"} "$@"\n'
        )
        python.chmod(0o755)
        otlp, store, gateway = free_port(), free_port(), free_port()
        inherited = {
            name: text for name, text in os.environ.items() if not name.startswith("LTRAIN_")
        }
        self.environ = {
            **inherited,
            "LTRAIN_HOME": str(self.home),
            "LTRAIN_STORE": f"http://127.0.0.1:{store}",
            "LTRAIN_GATEWAY": f"http://127.0.0.1:{gateway}",
            "LTRAIN_VLLM_PYTHON": str(python),
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{otlp}",
            "FAKE_VLLM_FIRST_ID": "100",  # within the tiny policy's vocabulary
            "FAKE_VLLM_RELOAD": "2",
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self.temporary),
        }

    def start(self) -> Run:
        """Start the run, or the same command again."""
        output = self.folder / f"out-{len(self.runs)}"
        command = [sys.executable, "-m", "ltrain", "run", str(self.folder / "ltrain.toml")]
        with output.open("wb") as writing:
            process = subprocess.Popen(
                [*self.within, *command, "--model", str(self.folder / "tiny"), "--json"],
                stdout=writing,
                stderr=subprocess.STDOUT,
                env=self.environ,
                cwd=self.folder,
            )
        self.runs.append(Run(process, output, self.wait))
        return self.runs[-1]

    def await_wave(self, run: Run, number: int) -> None:
        """Wait until the run is in the middle of the rollouts of a wave, the first being 0."""
        until(lambda: run.ended or len(self.waves()) >= number, f"wave {number}", self.wait)
        before = len(self.attempts())
        until(lambda: run.ended or len(self.attempts()) > before + 3, "attempts", self.wait)
        assert not run.ended, run.text

    def await_phase(self, run: Run, number: int, phase: str) -> None:
        """Wait until the run is in a phase of a training wave, has just passed it, or has ended."""
        until(lambda: run.ended or len(self.waves()) >= number, f"wave {number}", self.wait)
        before = len(self.attempts())
        until(lambda: run.ended or len(self.attempts()) > before + 3, "attempts", self.wait)
        signs: dict[str, Callable[[], bool]] = {
            "generate": lambda: True,
            "settle": lambda: ("train", number) in self.journal().completed,
            "build": lambda: ("train", number) in self.journal().evaluated,
            "train": lambda: self.file(f"datasets/chaos/train-{number}").exists(),
            "load": lambda: self.file(f"runs/chaos/checkpoints/chaos/{number + 1}").exists(),
        }
        until(lambda: run.ended or signs[phase](), f"{phase} of wave {number}", self.wait)

    def journal(self) -> Journal:
        """Return the run's journal."""
        journal = Journal.load(self.file("runs/chaos"))
        assert journal is not None
        return journal

    def waves(self) -> list[Wave]:
        """Return the waves of the run's journal."""
        journal = Journal.load(self.file("runs/chaos"))
        return [] if journal is None else journal.waves

    def attempts(self) -> list[dict[str, Any]]:
        """Return the lines of the run's attempt log that begin an attempt."""
        log = self.file("runs/chaos/attempts.jsonl")
        lines = log.read_bytes().splitlines() if log.exists() else []
        return [
            row for row in map(read_entry, lines) if row and row.keys() == {"rollout", "attempt"}
        ]

    def processes(self) -> list[psutil.Process]:
        """Return what runs for this project: all that was started with its home."""
        return [each for each in psutil.process_iter() if self._owns(each)]

    def _owns(self, process: psutil.Process) -> bool:
        try:
            home = process.environ().get("LTRAIN_HOME", "")
            ours = f"{home}/".startswith(f"{self.home}/")  # a worker's is agents/<run> in it
            return ours and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def find(self, *words: str, guard: bool = False) -> psutil.Process:
        """Wait for the process with all `words` in its command line, or else its guard."""

        process: psutil.Process = until(
            lambda: self.look_for(*words, guard=guard), f"a process {words}", self.wait
        )
        return process

    def look_for(self, *words: str, guard: bool = False) -> psutil.Process | None:
        """Return the process with all `words` in its command line, or else its guard, if any."""
        for each in self.processes():
            try:
                line = " ".join(each.cmdline())
            except psutil.Error:
                continue
            if all(word in line for word in words) and ("guard.py" in line) == guard:
                return each
        return None

    def kill(self, *words: str, guard: bool = False) -> None:
        """End a process without a chance to clean up."""
        process = self.find(*words, guard=guard)
        process.kill()
        until(lambda: not process.is_running() or _zombie(process), f"the end of {words}")

    def listening(self) -> set[str]:
        """Return the addresses that its processes listen on."""
        result = set()
        for process in self.processes():
            try:
                connections = process.net_connections("inet")
            except psutil.Error:
                continue
            result |= {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
        return {address.removeprefix("::ffff:") for address in result}

    def close(self) -> None:
        """End what a failed test left."""
        for run in self.runs:
            if not run.ended:
                run.process.kill()
            run.process.wait()
        for process in self.processes():
            try:
                process.kill()
            except psutil.Error:
                continue

    def check(self) -> None:
        """Hold what the run left against what it must leave, when its last command has ended."""
        assert (left := self.left()) == [], left
        journal = Journal.load(self.file("runs/chaos"))
        assert journal is not None and journal.finished, journal
        waves = [(wave.wave, wave.rollouts, wave.outcomes) for wave in journal.waves]
        expected = [(number, self.wave, {"ok": self.wave}) for number in range(self.updates)]
        assert waves == expected, f"{waves}\n{self.failures()}"
        published = [wave.published for wave in journal.waves if wave.published is not None]
        assert published == sorted(set(published))
        numbers = [(row["rollout"], row["attempt"]) for row in self.attempts()]
        assert [each for each, count in Counter(numbers).items() if count > 1] == []
        assert self._rollouts() == Counter({(1, True): self.wave * self.updates})
        assert self._outcomes() <= {"ok", "infra", "cancelled"}
        self.check_waves(journal)

    def check_waves(self, journal: Journal) -> None:
        """Check that the rollouts of journal, dataset and store are the same, with their ends."""
        closed = self.sql(
            "SELECT concat(RolloutId, '.', toString(Attempt)) AS execution, "
            "argMax(SpanAttributes['ltrain.rollout.outcome'], Timestamp) AS outcome "
            "FROM otel.spans WHERE SpanName = 'ltrain.rollout' GROUP BY execution"
        )
        stored = {row["execution"]: row["outcome"] for row in closed}
        for number in range(self.updates):
            wave = journal.completed["train", number]
            known = {f"{each.rollout}.{each.attempt}": each.outcome for each in wave.rollouts}
            assert len(known) == self.wave and known.items() <= stored.items(), number
            dataset = Dataset.open(self.file(f"datasets/chaos/train-{number}"))
            latest = dataset.table("executions").filter(~pl.col("superseded"))
            assert dict(latest.select("execution_id", "outcome").iter_rows()) == known, number

    def failures(self) -> str:
        """Return the attempts that ended badly, and the last lines of the logs."""
        log = self.file("runs/chaos/attempts.jsonl")
        rows = log.read_text(errors="replace").splitlines()
        bad = [row for row in rows if '"outcome"' in row and '"ok"' not in row]
        logs = sorted(self.file("logs").glob("*.log"))
        ends = [f"{log.name}:\n" + log.read_text()[-2000:] for log in logs]
        return "\n".join([*bad, self.runs[-1].text[-2000:], *ends])

    def left(self) -> list[str]:
        """Return what a run that has ended left: processes, scratch folders, drafts."""
        processes = [" ".join(each.cmdline())[:200] for each in self.processes()]
        temporary = [each for each in self.temporary.iterdir() if each.name not in SHARED]
        folders = [*temporary, *self.file("sockets").glob("*")]
        drafts = [each for name in ("policies", "runs") for each in self.file(name).rglob(".*")]
        return [*processes, *map(str, folders), *map(str, drafts)]

    def _rollouts(self) -> Counter[tuple[int, bool]]:
        """Count rollouts by attempts that ended well, and whether the agent made the reward."""
        rows = self.sql(
            "SELECT RolloutId AS r, uniqExact(Attempt) AS n FROM otel.spans WHERE "
            "SpanAttributes['ltrain.rollout.outcome'] = 'ok' GROUP BY r"
        )
        rewards = self.sql(
            "SELECT rollout AS r, groupUniqArray(value) AS v FROM otel.evaluations GROUP BY r"
        )
        earned = {row["r"]: row["v"] for row in rewards}
        return Counter((int(row["n"]), earned.get(row["r"]) in ([0.5], [1.0])) for row in rows)

    def _outcomes(self) -> set[str]:
        rows = self.sql(
            "SELECT DISTINCT SpanAttributes['ltrain.rollout.outcome'] AS o FROM otel.spans "
            "WHERE o != ''"
        )
        return {row["o"] for row in rows}

    def sql(self, query: str) -> list[dict[str, Any]]:
        """Ask the run's store, which no process may have open."""
        store = f"chdb://{self.home / 'store'}"
        command = [sys.executable, "-m", "ltrain", "sql", query, "--store", store]
        done = subprocess.run(
            [*self.within, *command, "--format", "json"],
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows


@contextmanager
def mounted(project: Project, folder: Path, size: int) -> Iterator[None]:
    """Mount a disk of `size` MiB at a folder of a project, in a namespace of its own."""
    folder.mkdir(parents=True)
    mount = f"mount -t tmpfs -o size={size}m none {folder} && echo mounted && exec sleep 7200"
    if not shutil.which("unshare"):
        raise RuntimeError("This test needs unshare and nsenter, of Debian's util-linux.")
    with subprocess.Popen(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", mount],
        stdout=subprocess.PIPE,
        text=True,
    ) as keeper:
        try:
            assert keeper.stdout is not None
            assert keeper.stdout.readline() == "mounted\n"
            inside = ("--user", "--mount", "--preserve-credentials", "--wd=/")
            project.within = ("nsenter", "--target", str(keeper.pid), *inside)
            project.root = Path(f"/proc/{keeper.pid}/root")
            yield
        finally:
            keeper.kill()


def interrupt(run: Run) -> None:
    """Send the signal of ctrl-C."""
    run.process.send_signal(signal.SIGINT)


def _zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
