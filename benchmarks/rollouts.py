"""How many rollouts a second `ltrain rollout` runs, with an agent that makes one call.

The policy server answers at once with 1,152 token ids, and the spans are stored by `ltrain up`. The
rate is that of warm workers: two numbers of rollouts are run, and the shorter run is subtracted.
The same is measured with `ltrain worker` on this machine and `ltrain rollout --to`. With a shell
agent, it also prints what a rollout costs beside the start of the agent's interpreter. The CPU
time a rollout is that of the runner with its workers, and of the gateway.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.support.process_cost import children_cpu_seconds, cpu_seconds
from benchmarks.support.servers import LTRAIN, Stack, ltrain, policy_server

from ltrain_collector.store import Store

RUNS = 3
FEW, MANY = 200, 3000
"""Rollouts of the two runs whose difference is measured."""
MIN_REMOTE = 0.8
"""Limit: rate with a remote worker, relative to that of local workers."""
SHELL = 20
MIN_RATE = 200
"""Limit: rollouts per second with warm workers."""
AGENT = """
import openai

client = openai.AsyncOpenAI(base_url="http://unused", api_key="none")

async def solve(task, llm):
    policy = client.with_options(base_url=llm.base_url, api_key=llm.api_key)
    messages = [{"role": "user", "content": "hello"}]
    answer = await policy.chat.completions.create(model=llm.model, messages=messages)
    return answer.choices[0].message.content

def score(task, result):
    return 1.0
"""
COMMAND = (sys.executable, "-c", "print('done')")
"""A shell agent that does nothing."""


@contextmanager
def remote_worker(place: Path, stack: Stack, *agent: str) -> Iterator[None]:
    """Run `ltrain worker` for a block, with a home of its own as on another machine."""
    environ = {**os.environ, **stack.environment}
    key = subprocess.run(
        [LTRAIN, "worker-key"], env=environ, check=True, capture_output=True, text=True
    ).stdout.strip()
    environ |= {"LTRAIN_WORKER_KEY": key, "LTRAIN_HOME": str(place / "worker-home")}
    command = [LTRAIN, "worker", stack.gateway, *agent]
    with subprocess.Popen(command, cwd=place, env=environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it is ready
        try:
            yield
        finally:
            process.terminate()


def run(place: Path, stack: Stack, name: str, count: int, *agent: str) -> float:
    """Run rollouts; return the seconds that the command took."""
    tasks = place / f"{name}.jsonl"
    lines = (json.dumps({"id": f"t{number}", "input": "hello"}) for number in range(count))
    tasks.write_text("\n".join(lines))
    command = [LTRAIN, "rollout", str(tasks), "--reward", "agent:score"]
    began = time.perf_counter()
    done = subprocess.run(
        [*command, *agent],
        cwd=place,
        env={**os.environ, **stack.environment, "LTRAIN_GATEWAY": stack.gateway},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(done.stdout)
    return seconds


def stored_rollouts(store_url: str, name: str, count: int) -> None:
    """Check that each rollout is stored with its call, its result and its reward."""
    query = (
        f"SELECT countIf(GenAiOp = 'chat' AND ScopeName = 'ltrain.gateway') AS calls, "
        f"countIf(SpanName = 'ltrain.rollout') AS rollouts, "
        f"countIf(SpanName = 'gen_ai.evaluation.result') AS rewards "
        f"FROM otel.spans WHERE RunId = '{name}'"
    )
    until = time.monotonic() + 60
    with Store.open(store_url) as store:
        while (found := store.query(query).rows(named=True)[0]) != dict.fromkeys(found, count):
            if time.monotonic() > until:
                raise SystemExit(f"{count} rollouts were run and {found} are stored")
            time.sleep(0.5)


def interpreter_seconds() -> float:
    """Return the seconds of the shell agent's command by itself."""
    seconds = []
    for _ in range(SHELL):
        began = time.perf_counter()
        subprocess.run(COMMAND, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - began)
    return median(seconds)


def both_cpu_seconds(stack: Stack) -> tuple[float, float]:
    """Return the CPU seconds of the commands that have ended, and of the gateway."""
    return children_cpu_seconds(), cpu_seconds(stack.gateway_process)


def warm_rate(place: Path, stack: Stack, name: str, many: int, *agent: str) -> list[float]:
    """Return the rollouts a second without the start of the processes, and the CPU ms of each."""
    began = both_cpu_seconds(stack)
    few_seconds = run(place, stack, f"few{name}", FEW, *agent)
    between = both_cpu_seconds(stack)
    many_seconds = run(place, stack, f"many{name}", many, *agent)
    ended = both_cpu_seconds(stack)
    stored_rollouts(stack.store, f"many{name}", many)
    cpu = [
        (after - middle) - (middle - before)
        for before, middle, after in zip(began, between, ended, strict=True)
    ]
    warm = many - FEW
    return [warm / (many_seconds - few_seconds), *(1000 * seconds / warm for seconds in cpu)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", default="2", help="worker processes")
    parser.add_argument("--rollouts", type=int, default=MANY, help="of the longer run")
    parser.add_argument("--runs", type=int, default=RUNS)
    arguments = parser.parse_args()
    agent = ("--agent", "agent:solve", "--workers", arguments.workers)
    many = arguments.rollouts
    local: list[list[float]] = []
    remote, shell = [], []
    with tempfile.TemporaryDirectory(prefix="ltrain-rollouts-") as folder:
        place = Path(folder)
        (place / "agent.py").write_text(AGENT)
        with policy_server() as upstream, ltrain(place, upstream) as stack:
            for number in range(arguments.runs):
                local.append(warm_rate(place, stack, f"local{number}", many, *agent))
                with remote_worker(place, stack, *agent):
                    to = ("--to", stack.gateway)
                    remote.append(warm_rate(place, stack, f"remote{number}", many, *to)[0])
                start = run(place, stack, f"one{number}", 1, "--workers", "1", "--", *COMMAND)
                all_shell = run(
                    place, stack, f"sh{number}", SHELL, "--workers", "1", "--", *COMMAND
                )
                shell.append((all_shell - start) / (SHELL - 1))
    rates, runner_cpu, gateway_cpu = (list(column) for column in zip(*local, strict=True))
    rate, interpreter = round(median(rates)), interpreter_seconds()
    relative = round(median(far / near for far, near in zip(remote, rates, strict=True)), 2)
    result = {
        "name": "rollouts",
        "value": rate,
        "unit": f"rollouts a second with warm workers, at least {MIN_RATE}",
        "peer": f"a remote worker, at least {MIN_REMOTE} of that",
        "ratio": relative,
        "runs": [round(each) for each in rates],
        "runner_and_workers_cpu_ms": round(median(runner_cpu), 1),
        "gateway_cpu_ms": round(median(gateway_cpu), 1),
        "remote_runs": [round(each) for each in remote],
        "shell_agent_seconds": round(median(shell), 3),
        "its_interpreter_seconds": round(interpreter, 3),
    }
    print(json.dumps(result))
    sys.exit(rate < MIN_RATE or relative < MIN_REMOTE)


if __name__ == "__main__":
    main()
