"""Wall time of episodes of verifiers as rollouts, beside verifiers' own evaluation of them.

Both play the same tasks against the same model server, which samples 128 tokens for a call.
Rollouts go through the gateway, and their spans are stored.
"""

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.support.servers import AGENTS, Stack, ltrain, policy_server

from ltrain_train.rollout import Runner, RunnerEnvironment, load_tasks
from ltrain_train.runs import make_plan
from ltrain_train.store import home_secret

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv-gyms" / "bin" / "python"
MAX_RATIO = 1.15
RECIPE = """
[source]
run = "episodes"
[rollout]
environment = "verifiers:two_calls"
python = "{python}"
workers = 1
concurrency = {concurrency}
held_out_share = 0
[rollout.options.agent.harness]
id = "two_calls"
[[policy]]
name = "policy"
[[reward]]
name = "length"
evaluation = "reward"
"""


def own_seconds(url: str, episodes: int, concurrency: int) -> float:
    """Return the seconds of verifiers' evaluation."""
    command = [str(PYTHON), str(AGENTS / "two_calls.py"), url, str(episodes), str(concurrency)]
    done = subprocess.run(command, cwd=AGENTS, check=True, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1])


def rollout_seconds(
    stack: Stack, recipe: Path, episodes: int, runs: int, between: list[float], url: str
) -> list[float]:
    """Return the seconds of the rollouts of each run, with one of verifiers' own before each."""
    home = Path(stack.environment["LTRAIN_HOME"])
    plan = make_plan(recipe, model=None, updates=None)
    tasks = load_tasks(Path(plan.rollout.tasks))
    environment = RunnerEnvironment(
        run=plan.name, home=home, gateway=stack.gateway, secret=home_secret(home), policy="policy"
    )
    seconds = []
    with Runner(plan.program, environment) as runner:
        for wave in range(runs + 1):
            if wave:
                between.append(own_seconds(url, episodes, plan.rollout.concurrency or 1))
            began = time.perf_counter()
            results = runner.run("train", wave, tasks[: episodes if wave else 8], 1, sampling={})
            seconds.append(time.perf_counter() - began)
            assert all(each.outcome == "ok" for each in results), results[0]
    return seconds[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--pace", type=float, default=0.01, help="seconds for a sampled token")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ltrain-environments-") as name:
        place = Path(name)
        with policy_server(arguments.pace) as url, ltrain(place, url) as stack:
            os.environ |= stack.environment
            recipe = AGENTS / f"two_calls-{os.getpid()}.toml"
            recipe.write_text(RECIPE.format(python=PYTHON, concurrency=arguments.concurrency))
            own = list[float]()
            try:
                ours = rollout_seconds(stack, recipe, arguments.episodes, arguments.runs, own, url)
            finally:
                recipe.unlink()
    ratio = median(ours) / median(own)
    print(
        f"{arguments.episodes} episodes of two calls, {arguments.concurrency} at a time, "
        f"{arguments.pace * 1000:g} ms a token, medians of {arguments.runs}: verifiers "
        f"{median(own):.2f} s, rollouts {median(ours):.2f} s: {ratio:.2f} (bar {MAX_RATIO})"
    )


if __name__ == "__main__":
    main()
