"""`ltrain run`: ctrl-C is never lost, and the recipe says how the policy is served."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.transforms.conftest import RECIPE

from ltrain_train.errors import BadRun
from ltrain_train.loop import command
from ltrain_train.runs.plan import Plan, make_plan
from ltrain_train.runs.services import Services
from ltrain_transforms.recipe import Critic, Deploy, Recipe

BEGIN = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from ltrain_train.loop import command

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

plan = SimpleNamespace(home=Path(sys.argv[1]), name="r", trained=("p",))
"""
LOST = """
class Deaf:
    def __del__(self):  # Python ignores what is raised here
        interrupt()

with command._hold_lock(plan):
    Deaf()
    print("lost", flush=True)
    interrupt()
    print("deaf", flush=True)
"""
BLOCKED = """
try:
    with command._hold_lock(plan):
        interrupt()
except KeyboardInterrupt:
    os.write(1, b"unwound")
os._exit(0)  # nothing more is written to stderr
"""
TWICE = """
with command._hold_lock(plan) as lock:
    try:
        interrupt()
    finally:
        interrupt()
        try:
            raise ValueError
        except ValueError:
            interrupt()
        print("cleaned up", flush=True)
"""
ENDED = """
with command._hold_lock(plan) as lock:
    with lock.working():
        pass
    interrupt()
    print("cleaned up", flush=True)
"""
WAIT = 60.0


def run(code: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BEGIN + code, str(home)],
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )


def test_a_swallowed_interrupt_is_raised_by_the_next_signal(tmp_path: Path) -> None:
    done = run(LOST, tmp_path)
    assert done.stdout == "lost\n"
    assert done.returncode != 0
    assert done.stderr.count("ltrain: stopping; the same command continues from here.") == 2


def test_a_blocking_stderr_does_not_delay_the_run(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    while True:
        try:
            os.write(writing, bytes(1 << 12))
        except BlockingIOError:
            break
    os.set_blocking(writing, True)
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + BLOCKED, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=writing,
        timeout=WAIT,
        check=False,
    )
    os.close(reading)
    os.close(writing)
    assert done.stdout == b"unwound"


def test_a_second_interrupt_does_not_break_the_cleanup(tmp_path: Path) -> None:
    done = run(TWICE, tmp_path)
    assert done.stdout == "cleaned up\n"
    assert done.stderr.count("ltrain: stopping; ") == 1
    assert done.stderr.count("ltrain: still stopping; `kill -9 ") == 2


def test_an_interrupt_after_the_work_changes_nothing(tmp_path: Path) -> None:
    done = run(ENDED, tmp_path)
    assert (done.stdout, done.returncode) == ("cleaned up\n", 0)
    assert "ltrain: still stopping; " in done.stderr


def test_the_serve_section_becomes_arguments_of_ltrain_serve(tmp_path: Path) -> None:
    (tmp_path / "tools.jinja").write_text("{{ messages }}")
    section = {
        "max_model_len": 8192,
        "tool_parser": "hermes",
        "chat_template": "tools.jinja",
        "vllm": ["--seed", "7"],
        "upstream": "http://127.0.0.1:9",
    }
    fields = tomllib.loads(RECIPE) | {"train": {"dtype": "fp32", "ranks": 2}}
    plan = Plan(
        recipe=Recipe.model_validate(fields | {"serve": section}), folder=tmp_path, home=tmp_path
    )
    assert " ".join(plan.serve_arguments) == (
        "--upstream http://127.0.0.1:9 --dtype float32 --max-model-len 8192"
        " --publish auto --lora-rank 16 --max-adapters 5"
        " -- --enable-auto-tool-choice --tool-call-parser hermes"
        f" --chat-template {tmp_path.resolve()}/tools.jinja --seed 7"
    )
    assert plan.train.ranks == 2
    fields["train"] |= {"lora_rank": 0}
    plain = Plan(recipe=Recipe.model_validate(fields), folder=tmp_path, home=tmp_path)
    assert plain.serve_arguments == ["--dtype", "float32", "--"]
    fields |= {"serve": {"publish": "adapter"}, "train": {"lora_rank": 8, "max_staleness": 0}}
    adapter = Plan(recipe=Recipe.model_validate(fields), folder=tmp_path, home=tmp_path)
    options = " ".join(adapter.serve_arguments)
    assert "--publish adapter --lora-rank 8 --max-adapters 2 --" in options
    fields |= {"serve": {"max_adapters": 7}}
    seven = Plan(recipe=Recipe.model_validate(fields), folder=tmp_path, home=tmp_path)
    assert "--publish auto --lora-rank 8 --max-adapters 7 --" in " ".join(seven.serve_arguments)
    (tmp_path / "tools.jinja").unlink()
    with pytest.raises(BadRun, match=r"chat_template = 'tools.jinja': there is no such file"):
        plan.serve_arguments  # noqa: B018


def test_the_gateway_of_a_run_is_started_with_the_serve_section(tmp_path: Path) -> None:
    services = Services(tmp_path, policies=["p"], serve=("--max-model-len", "8192", "--", "--seed"))
    command = services._gateway_service().command
    assert command[:3] == ("serve", "--policy", "p")
    assert command[-4:] == ("--max-model-len", "8192", "--", "--seed")
    services.close()


@pytest.mark.parametrize(
    ("served", "sentence"),
    [
        (True, "The gateway serves it."),
        (
            False,
            "No gateway serves the policy now. Serve it with `ltrain serve --policy sql`.",
        ),
    ],
)
def test_an_offline_run_ends_with_whether_a_gateway_serves_the_version(
    capsys: pytest.CaptureFixture[str], served: bool, sentence: str
) -> None:
    update = SimpleNamespace(
        report=SimpleNamespace(rows=4, metrics={}),
        left_out=SimpleNamespace(reasons={}, sentences=list),
    )
    alarm = SimpleNamespace(sentence="wave 2: 30% of the rollouts lost calls")
    run = SimpleNamespace(
        dataset=SimpleNamespace(id="d1"), update=update, version=2, path="v2", served=served,
        alarms=(alarm,),
    )  # fmt: skip
    report = SimpleNamespace(as_dict=lambda: {"rows": 4, "from_version": 1})
    recipe = SimpleNamespace(deploy=Deploy())
    plan, data = SimpleNamespace(policy="sql", recipe=recipe), SimpleNamespace(report=report)
    command.print_run(cast(Any, plan), cast(Any, data), cast(Any, run), as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "Policy sql v2 at v2: trained on 4 rows of dataset d1.",
        f"alarm: {alarm.sentence}",
        sentence,
        "`ltrain show sql@2` shows what it was trained on.",
    ]
    command.print_run(cast(Any, plan), cast(Any, data), cast(Any, run), as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert shown == {
        "rows": 4, "from_version": 1, "version": 2, "path": "v2", "served": served, "metrics": {},
        "alarms": [alarm.sentence],
    }  # fmt: skip


def test_an_online_run_trains_on_its_own_rollouts_whatever_mode_the_recipe_reads(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ltrain.toml"
    path.write_text(RECIPE.replace('run = "demo"', 'run = "demo", mode = "prod"'))
    agent: dict[str, Any] = {"tasks": "t.jsonl", "agent": "a:a", "reward": "r:r"}
    online = make_plan(path, model=None, updates=None, **agent).recipe
    assert (online.source.mode, online.credit.outcome.estimator) == ("train", "grpo")
    once = make_plan(path, model=None, updates=None, once=True, **agent).recipe
    assert (once.source.mode, once.credit.outcome.estimator) == ("prod", "reinforce_pp")
    offline = make_plan(path, model=None, updates=None, mode="all").recipe
    assert (offline.source.mode, offline.credit.outcome.estimator) == ("all", "grpo")


@pytest.mark.parametrize("credit", ['combine = "rewards"', 'outcome.estimator = "gae"'])
def test_the_plan_has_only_the_keys_that_the_recipe_sets(tmp_path: Path, credit: str) -> None:
    """[credit.process] would be refused beside both."""
    path = tmp_path / "ltrain.toml"
    reward = '[[reward]]\nname = "answer"\nevaluation = "reward"\n'
    path.write_text(f'[[policy]]\nname = "sql"\n{reward}[credit]\n{credit}\n')
    for updates in (None, 3):
        plan = make_plan(path, model=None, updates=updates)
        assert plan.recipe.digest == Recipe.load(path).digest
        assert plan.train.critic == (Critic() if "gae" in credit else None)


def test_a_recipe_with_a_judge_needs_no_reward_function(tmp_path: Path) -> None:
    path = tmp_path / "ltrain.toml"
    path.write_text(RECIPE)
    with pytest.raises(BadRun, match="Add --reward, or the same keys"):
        make_plan(path, model=None, updates=None, tasks="t.jsonl", agent="a:a")
    judge = '\n[[reward]]\nuse = "judge"\nparams = { url = "http://judge/v1" }\n'
    path.write_text(RECIPE + judge)
    plan = make_plan(path, model=None, updates=None, tasks="t.jsonl", agent="a:a")
    assert plan.rollout.reward is None
    assert plan.recipe.judges["judge"].url == "http://judge/v1"
