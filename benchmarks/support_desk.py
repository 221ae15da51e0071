"""A month of a support desk in minutes: users, updates, two sabotages, with and without trials.

SmolLM2 answers simulated users behind `ltrain serve`, and `ltrain run --watch` trains on their
thumbs. Twice a bad version is injected: one that was trained on a reward that can be farmed, and
one whose adapter is scrambled, so that its answers are in no language. With `[deploy]` both are
tried on a share of the users and taken back; without, they are published to all.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from benchmarks.support.servers import LTRAIN, collector, started
from safetensors.numpy import load_file, save_file

from ltrain_train.policy import Deployments, Policies

EXAMPLE = Path("examples/support_desk")
MODEL = Path(".ltrain/models/smollm2")
POLICY = "desk"
SHARE = "share = 0.5\n"
WINDOW = 60.0
"""Seconds over which the share of right answers is averaged, and of the traces of a sabotage."""
ENDS = 2
"""Windows at the beginning and at the end that are compared."""
SABOTAGES = (0.4, 0.7)
"""When the bad versions are injected, as shares of the time."""


@dataclass(slots=True)
class Desk:
    """The processes of one run."""

    folder: Path
    environ: dict[str, str]
    stack: ExitStack
    tries: bool
    """Whether versions are tried before they are current."""
    sabotages: dict[str, tuple[int, float]] = field(default_factory=dict)
    """The version of each sabotage, and when it was injected, by its name."""

    @property
    def policies(self) -> Policies:
        return Policies(Path(self.environ["LTRAIN_HOME"]))

    def run(self, *arguments: str) -> str:
        """Run a command of ltrain to its end; return its output, or its error."""
        command = [LTRAIN, *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False
        )
        print("$ ltrain", *arguments, "\n" + done.stdout + done.stderr, file=sys.stderr, flush=True)
        return done.stdout if done.returncode == 0 else ""

    def start(self, *command: str, log: str) -> subprocess.Popen[bytes]:
        """Start a process that ends with the run."""
        out = self.stack.enter_context((self.folder / log).open("ab"))
        process = subprocess.Popen(
            command, cwd=self.folder, env=self.environ, stdout=out, stderr=subprocess.STDOUT
        )
        self.stack.callback(stop, process)
        return process

    def watch(self) -> subprocess.Popen[bytes]:
        return self.start(LTRAIN, "run", "--watch", log="watch.log")

    def wait_until_quiet(self, until: float) -> bool:
        """Wait until no version is on trial; return whether that was before `until`."""
        while time.time() < until:
            if Deployments(self.policies, POLICY).candidate() is None:
                return True
            time.sleep(1)
        return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


@contextmanager
def opened(folder: Path, *, tries: bool, users: int, seed: int) -> Iterator[Desk]:
    """Start store, gateway and users in a copy of the example."""
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
    for recipe in folder.glob("*.toml"):
        text = recipe.read_text()
        assert SHARE in text
        recipe.write_text(text if tries else text.replace(SHARE, "share = 0.0\n"))
    with ExitStack() as stack:
        environ = stack.enter_context(collector(folder))
        serve = [LTRAIN, "serve", str(MODEL.resolve()), "--policy", POLICY, "--port", "0"]
        serve += ["--publish", "adapter", "--lora-rank", "16", "--dtype", "float32"]
        ready = r"gateway ready at (http://\S+)/v1"
        _, url = stack.enter_context(started(serve, ready, **environ))
        openai = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none"}
        variables = {"LTRAIN_GATEWAY": url, "OPENAI_MODEL": POLICY, **openai}
        desk = Desk(folder, {**os.environ, **environ, **variables}, stack, tries)
        launcher = str(Path(sys.executable).with_name("opentelemetry-instrument"))
        options = ("--users", str(users), "--seed", str(seed))
        desk.start(launcher, sys.executable, "users.py", *options, log="users.log")
        yield desk


def sabotage(desk: Desk, name: str, until: float) -> None:
    """Inject a bad version, when no other one is on trial."""
    act = {"farmed": farm, "scrambled": scramble}[name]
    while desk.wait_until_quiet(until):
        before = desk.policies.latest(POLICY)
        if act(desk):
            version = desk.policies.latest(POLICY)
            desk.sabotages[name] = (version, time.time())
            return
        assert desk.policies.latest(POLICY) == before or desk.tries


def farm(desk: Desk) -> bool:
    """Train on the reward that can be farmed, of the last minute; the watch has ended."""
    recipe = desk.folder / "farmed.toml"
    begin = datetime.fromtimestamp(time.time() - WINDOW, UTC).isoformat()
    lines = [line for line in recipe.read_text().splitlines() if not line.startswith("since = ")]
    lines.insert(lines.index("[source]") + 1, f'since = "{begin}"')
    recipe.write_text("\n".join(lines) + "\n")
    return bool(desk.run("run", recipe.name, "--once", "--again"))


def scramble(desk: Desk) -> bool:
    """Add a version whose adapter is noise."""
    current = desk.policies.current(POLICY)
    source, folder = desk.policies.path(POLICY, current), desk.folder / "scrambled"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("policy.json", "*.parquet"))
    chance = np.random.default_rng(0)
    tensors = load_file(folder / "adapter_model.safetensors")
    noise = {
        name: (chance.standard_normal(each.shape) * 0.3).astype(each.dtype)
        for name, each in tensors.items()
    }
    (folder / "adapter_model.safetensors").chmod(0o600)
    save_file(noise, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    desk.run("policy", "add", POLICY, str(folder))
    version = f"{POLICY}@{desk.policies.latest(POLICY)}"
    if desk.tries:
        return bool(desk.run("deploy", "start", version, "--share", "0.5"))
    return bool(desk.run("policy", "use", version))


def measure(folder: Path, *, minutes: float, users: int, seed: int, tries: bool) -> dict[str, Any]:
    """Run the desk; return what the users saw."""
    with opened(folder, tries=tries, users=users, seed=seed) as desk:
        began = time.time()
        end = began + minutes * 60
        watch = desk.watch()
        for at, name in zip(SABOTAGES, ("farmed", "scrambled"), strict=True):
            time.sleep(max(0.0, began + at * minutes * 60 - time.time()))
            desk.wait_until_quiet(end)
            stop(watch)
            sabotage(desk, name, end)
            watch = desk.watch()
        time.sleep(max(0.0, end - time.time()))
        stop(watch)
        desk.run("deploy", "status", POLICY)
        return describe(desk, began)


def describe(desk: Desk, began: float) -> dict[str, Any]:
    """Return the share of right answers of each minute, and the stages of all versions."""
    texts = (desk.folder / "answers.jsonl").read_text().splitlines()
    lines = [json.loads(text) for text in texts]
    answers = sorted((line["at"] - began, line["right"]) for line in lines)
    last = answers[-1][0]
    windows = groupby(answers, lambda each: int(each[0] // WINDOW))
    stages = desk.policies.directory / POLICY / "deployments.jsonl"
    found = map(json.loads, stages.read_text().splitlines() if stages.exists() else ())
    promotions = desk.policies.directory / POLICY / "promotions.jsonl"
    return {
        "answers": len(answers),
        "right": fmean(right for _, right in answers),
        "by_team": {
            "first": mean_by_team(lines, began, 0, ENDS * WINDOW),
            "last": mean_by_team(lines, began, last - ENDS * WINDOW, last),
        },
        "minutes": {minute: fmean(right for _, right in each) for minute, each in windows},
        "sabotages": {
            name: {"version": version, "minute": (at - began) / 60}
            for name, (version, at) in desk.sabotages.items()
        },
        "stages": [
            {
                "minute": (each["at"] - began) / 60,
                **{key: each[key] for key in ("version", "stage", "reason")},
            }
            for each in found
        ],
        "promotions": promotions.read_text().splitlines(),
    }


def mean_by_team(
    lines: Sequence[Mapping[str, Any]], began: float, first: float, last: float
) -> float:
    """Return the share of right answers of each team's tickets, averaged over the teams.

    The topics drift, and some teams' tickets are easier.

    Args:
        first, last: seconds since `began`.
    """
    right = defaultdict[str, list[bool]](list)
    for line in lines:
        if first <= line["at"] - began <= last:
            right[line["team"]].append(line["right"])
    return fmean(map(fmean, right.values()))


def report(name: str, found: dict[str, Any]) -> None:
    """Print what the users saw."""
    print(f"{name}: {found['answers']} answers, {found['right']:.3f} right")
    print(
        "  by team: {first:.3f} in the first two minutes, {last:.3f} in the last two".format(
            **found["by_team"]
        )
    )
    print("  by minute: " + " ".join(f"{right:.2f}" for right in found["minutes"].values()))
    for sabotage_, fields in found["sabotages"].items():
        print(f"  {sabotage_}: v{fields['version']} in minute {fields['minute']:.1f}")
    for each in found["stages"]:
        text = "minute {minute:.1f}: v{version} {stage}: {reason}".format(**each)
        print(f"  {text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=18.0)
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("tried", "published"))
    parser.add_argument("--keep", type=Path, help="folder of the files of the runs")
    parser.add_argument("--json", type=Path, help="file of the results")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="ld-", dir="/tmp") as folder:
        place = options.keep or Path(folder)
        for name in ("tried", "published"):
            if options.only in (None, name):
                results[name] = measure(
                    place / name,
                    minutes=options.minutes,
                    users=options.users,
                    seed=options.seed,
                    tries=name == "tried",
                )
                report(name, results[name])
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
