"""A home with a run of three waves, its datasets and a policy, and `ltrain ui` in front of it."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright
from tests.fork_server import ltrain_command
from tests.otlp import insert_otlp, open_empty_store
from tests.transforms.conftest import RECIPE, Attributes, Scene
from tests.transforms.reports.test_policy import publish

from ltrain_collector.transfer.importing import import_files
from ltrain_transforms.datasets import build, dataset_folder
from ltrain_transforms.deployment_file import Deployment, Stage, record_deployment
from ltrain_transforms.recipe import Recipe

expect.set_options(timeout=60_000)  # milliseconds: a busy machine is slow
WAVES = 3
REPRO = Path(__file__).parents[1] / "repro"
EVIL = "</script><img src=x onerror=alert(1)><a href='javascript:alert(2)'>\u202etxt.exe\x07{{7*7}}"
"""A text that a page without escapes would run."""


@dataclass
class Home:
    """The folder of a recipe, with `.ltrain` in it."""

    folder: Path
    datasets: list[str]
    """The ids of the datasets, by wave."""

    @property
    def store(self) -> str:
        return f"chdb://{self.folder}/.ltrain/store"


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home whose store no test changes."""
    return make_home(tmp_path_factory.mktemp("ui"))


def make_home(folder: Path) -> Home:
    """Make three waves of two tasks with two rollouts each, a validation, and a hostile trace."""
    file = folder / "ltrain.toml"
    file.write_text(RECIPE)
    recipe, scene = Recipe.load(file), Scene()
    for wave in range(WAVES):
        for task in ("t1", "t2"):
            for sample in range(2):
                rollout = scene.attempt(task, sample, wave=wave)
                rollout.dispatch()
                sampled: Attributes = {"ltrain.policy.version": wave}
                rollout.llm("write", (1, 2, 3), (4, 5), text=f"answer {sample}", gateway=sampled)
                rollout.tool(error="boom()" if sample == 0 else "")
                rollout.evaluate(float(sample) if task == "t1" else 0.25 * wave)
                rollout.close()
    held_out = scene.attempt("t9", 0, mode="val")
    held_out.dispatch()
    held_out.llm("write")
    held_out.evaluate(0.75)
    held_out.close()
    hostile = scene.attempt(f"t{EVIL}", 0, mode="val")
    hostile.dispatch()
    hostile.llm(f"write{EVIL}", text=EVIL * 3)
    hostile.tool(EVIL, error=EVIL)
    hostile.evaluate(0.0, name=EVIL)
    hostile.close()
    datasets = []
    with open_empty_store(folder / ".ltrain/store") as store:
        insert_otlp(store, scene.request())
        import_files(store, [REPRO / "unknown_dialect.json"], lambda progress: None)
        for wave in range(WAVES):
            out = dataset_folder(folder / ".ltrain", "demo", "train", wave)
            datasets.append(build(store, recipe, out, wave=wave).id)
    for version in range(WAVES + 1):
        parent = version - 1 if version else None
        publish(folder / ".ltrain", version, parent, datasets[version - 1] if version else None)
    policy = folder / ".ltrain" / "policies" / "sql"
    (policy / "current").write_text(f"{WAVES}\n")
    canary = Deployment.begin(2, 0.1, by="ada")
    record_deployment(policy, canary)
    record_deployment(policy, canary.move(Stage.RETIRED, by="ada", reason=EVIL))
    return Home(folder, datasets)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.fail("Chromium is not installed: install it with `apt-get install chromium`.")
    options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=options)
        yield launched
        launched.close()


@contextmanager
def running(folder: Path, *options: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Run `ltrain ui` in a folder; yield its link and its process."""
    command = [ltrain_command(), "ui", "--port", "0", *options]
    environment = os.environ | {"LTRAIN_HOME": str(folder / ".ltrain"), "PYTHONUNBUFFERED": "1"}
    log = (folder / "ui.log").open("w")
    with (
        log,
        subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ltrain: open http"), Path(log.name).read_text()
            yield line.split()[-1], process
        finally:
            process.terminate()
            process.wait(120)
