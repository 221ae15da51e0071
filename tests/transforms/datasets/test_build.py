"""The same traces build the same dataset, with any batches and any workers."""

import os
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from polars.testing import assert_frame_equal
from tests.otlp import insert_otlp, open_empty_store
from tests.up import start_up

from ltrain_collector.store import Store
from ltrain_transforms.datasets.build import build
from ltrain_transforms.datasets.dataset import Dataset
from ltrain_transforms.datasets.workers import ENVIRONMENT, open_workers
from ltrain_transforms.errors import NoCluster, NoDataset, Unwritable
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.tables import TABLES


def fill(scene: Any) -> None:
    """Add three waves of two tasks with a failed tool, a repeated attempt and a missing reward."""
    for wave in range(3):
        for task in ("t1", "t2"):
            for sample in range(3):
                rollout = scene.attempt(task, sample, wave=wave)
                rollout.dispatch()
                rollout.llm("write", (1, 2, 3), (4, sample), state={"question": task})
                rollout.tool(error="boom()" if sample == 1 else "")
                rollout.llm("rewrite", (7, 8), (9, wave))
                if (wave, sample) != (2, 2):
                    rollout.evaluate(float(sample == wave))
                rollout.close()
    again = scene.attempt("t1", 0, attempt=2)
    again.llm("write", (1, 2, 3), (5,))
    again.evaluate(1.0)
    again.close()


def rows(dataset: Dataset) -> dict[str, Any]:
    keys = {"drops": ["stage", "id", "reason"], "samples": ["sample_id"]}
    found = {}
    for table in TABLES:
        frame = dataset.table(table.name)
        found[table.name] = frame.sort(keys.get(table.name, frame.columns[:3]))
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("spans", [1, pytest.param(40, marks=pytest.mark.nightly)])
def test_the_batches_change_no_row(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path, spans: int
) -> None:
    fill(scene)
    insert_otlp(store, scene.request())
    whole = build(store, recipe, tmp_path / "whole")
    cut = build(store, recipe, tmp_path / "cut", spans_a_batch=spans)
    assert len(list((tmp_path / "cut" / "calls").iterdir())) > 4
    assert (cut.id, cut.counts) == (whole.id, whole.counts)
    assert cut.manifest["drops"] == whole.manifest["drops"]
    for name, frame in rows(whole).items():
        assert_frame_equal(frame, rows(cut)[name])


def files(root: Path) -> dict[str, bytes]:
    found = (file for file in root.rglob("*") if file.is_file())
    return {str(file.relative_to(root)): file.read_bytes() for file in found}


@pytest.mark.nightly
def test_the_workers_change_no_byte(
    scene: Any, recipe_file: Path, recipe: Recipe, tmp_path: Path
) -> None:
    fill(scene)
    dsn = f"chdb://{tmp_path}/store"
    with Store.open(dsn) as store, open_workers(2) as two:
        store.migrate()
        insert_otlp(store, scene.request())
        build(store, recipe, tmp_path / "alone", spans_a_batch=40)
        build(store, recipe, tmp_path / "two", spans_a_batch=40, workers=two)
    on_ray = Path(__file__).with_name("on_ray.py")
    arguments = (dsn, str(recipe_file), str(tmp_path / "ray"), "40")
    subprocess.run([sys.executable, str(on_ray), *arguments], check=True, capture_output=True)
    assert files(tmp_path / "alone") == files(tmp_path / "two") == files(tmp_path / "ray")


def test_workers_read_the_batches_of_a_server_themselves(
    scene: Any, recipe: Recipe, tmp_path: Path
) -> None:
    fill(scene)
    with open_empty_store(tmp_path / "store") as store:
        insert_otlp(store, scene.request())
        build(store, recipe, tmp_path / "alone", spans_a_batch=40)
    up = start_up(tmp_path / "store")
    try:
        with Store.open(up.dsn) as store, open_workers(2) as two:
            assert store.server is not None
            built = build(store, recipe, tmp_path / "two", spans_a_batch=40, workers=two)
    finally:
        assert up.stop() == 0
    assert built.id == Dataset.open(tmp_path / "alone").id
    assert not (tmp_path / "two" / "work").exists()
    alone, two_files = files(tmp_path / "alone"), files(tmp_path / "two")
    assert {name for name in alone if alone[name] != two_files.get(name)} == {"manifest.json"}


def test_rollouts_of_one_trace_are_read_together(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    """A span without a rollout id gets that of its ancestors, so the whole trace must be read."""
    first, second = (scene.attempt("t1", sample) for sample in range(2))
    second.trace = first.trace
    for attempt in (first, second):
        attempt.llm("write", (1, 2, 3), (4, 5))
        above = attempt.spans[-1].span
        attempt.emit("POST", "httpx", {}, named=False, parent=above)
        attempt.evaluate(float(attempt is first))
        attempt.close()
    insert_otlp(store, scene.request())
    whole = build(store, recipe, tmp_path / "whole")
    cut = build(store, recipe, tmp_path / "cut", spans_a_batch=1)
    assert (cut.id, cut.counts["executions"]) == (whole.id, 2)
    assert (cut.manifest["drops"], cut.manifest["other_spans"]) == ({}, 2)
    assert cut.manifest["counts"]["drops"] == 2, "the table accounts for every span"
    updated = build(store, recipe, tmp_path / "cut", update=True)
    assert (updated.manifest["drops"], updated.manifest["other_spans"]) == ({}, 2)


def wave_of(scene: Any, wave: int, closed: bool = True) -> None:
    for sample in range(2):
        rollout = scene.attempt("t1", sample, wave=wave)
        rollout.dispatch()
        rollout.llm("write", (1, 2, 3), (4, sample))
        rollout.evaluate(float(sample))
        if closed or sample:
            rollout.close()


def test_an_update_equals_a_full_build(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    wave_of(scene, 0)
    insert_otlp(store, scene.request())
    first = build(store, recipe, tmp_path / "out", update=True)
    old = {file: (tmp_path / "out" / file).stat().st_ino for file in files(tmp_path / "out")}
    wave_of(scene, 1)
    wave_of(scene, 2, closed=False)
    insert_otlp(store, scene.request())
    updated = build(store, recipe, tmp_path / "out", update=True)
    assert (first.counts["executions"], updated.counts["executions"]) == (2, 4)
    kept = [file for file in old if file != "manifest.json"]
    assert all((tmp_path / "out" / file).stat().st_ino == old[file] for file in kept)
    scene.attempts[-2].close()
    insert_otlp(store, scene.request())
    updated = build(store, recipe, tmp_path / "out", update=True)
    full = build(store, recipe, tmp_path / "full")
    assert (updated.id, updated.counts) == (full.id, full.counts)
    assert updated.manifest["drops"] == full.manifest["drops"]
    again = build(store, recipe, tmp_path / "out", update=True)
    assert again.id == full.id


def test_an_update_builds_all_where_something_changed(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    wave_of(scene, 0)
    insert_otlp(store, scene.request())
    build(store, recipe, tmp_path / "out")
    late = scene.attempts[0].emit("POST", "httpx", {}, named=False)
    insert_otlp(store, scene.request())
    updated = build(store, recipe, tmp_path / "out", update=True)
    assert updated.table("drops")["id"].to_list() == [late]
    heavier = recipe.reward[1].model_copy(update={"weight": 2.0})
    other = recipe.model_copy(update={"reward": (recipe.reward[0], heavier)})
    assert build(store, other, tmp_path / "out", update=True).manifest["recipe_digest"] == (
        other.digest
    )


def test_the_draft_of_a_killed_build_is_removed(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    fill(scene)
    insert_otlp(store, scene.request())
    gone = tmp_path / ".out.999999999-0badcafe.part"
    gone.mkdir()
    build(store, recipe, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "store") == [
        "ltrain.toml",
        "out",
    ]


def test_an_update_builds_all_where_the_dataset_is_damaged(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    wave_of(scene, 0)
    insert_otlp(store, scene.request())
    built = build(store, recipe, tmp_path / "out")
    (tmp_path / "out/calls/00000.parquet").write_bytes(b"PAR1")
    for file in (tmp_path / "out/samples").iterdir():
        file.unlink()
    assert not built.is_intact
    again = build(store, recipe, tmp_path / "out", update=True)
    assert again.is_intact
    assert again.id == built.id


@pytest.mark.parametrize("out", ["taken", "taken/below"])
def test_a_folder_that_cannot_be_written_is_an_error(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path, out: str
) -> None:
    wave_of(scene, 0)
    insert_otlp(store, scene.request())
    (tmp_path / "taken").write_text("a file")
    with pytest.raises((NoDataset, Unwritable), match=f"{out}.*(--out|another folder)"):
        build(store, recipe, tmp_path / out)
    assert (tmp_path / "taken").read_text() == "a file"


def test_an_address_without_a_cluster_is_an_error() -> None:
    refused = pytest.raises(NoCluster, match=r"No Ray cluster at 127\.0\.0\.1:1: .* refused")
    with refused, open_workers(2, "127.0.0.1:1"):
        pass


def test_a_server_that_is_not_ray_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ltrain_transforms.ray_cluster.CONNECT_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        refused = pytest.raises(NoCluster, match=rf"{address}: what listens there is not Ray\.")
        with refused, open_workers(2, address):
            pass


VALIDATED = """
source = { execution = "EXECUTION" }
policy = [{ name = "sql", agents = ["write"]MODES }]
reward = [{ name = "answer", evaluation = "reward" }]
"""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("execution", ["trace", "session", "rollout"])
@pytest.mark.parametrize(
    ("mode", "modes", "credited"),
    [
        ("train", "", {"train"}),
        ("all", "", {"train"}),
        ("val", "", {"val"}),
        ("all", ', modes = ["train", "val"]', {"train", "val"}),
        ("all", ', modes = ["val"]', {"val"}),
    ],
)
def test_validation_gets_credit_only_if_it_is_named_and_a_test_never_does(
    store: Store,
    scene: Any,
    tmp_path: Path,
    execution: str,
    mode: Any,
    modes: str,
    credited: set[str],
) -> None:
    for of_mode in ("train", "val", "test"):
        for sample in range(2):
            attempt = scene.attempt(mode=of_mode, sample=sample)
            attempt.dispatch()
            attempt.llm()
            attempt.evaluate(float(sample))
            attempt.emit("an MCP server", "mcp", {}, named=False)
            attempt.close()
    insert_otlp(store, scene.request())
    text = VALIDATED.replace("EXECUTION", execution).replace("MODES", modes)
    built = build(store, Recipe.model_validate(tomllib.loads(text)), tmp_path / "out", mode=mode)
    executions = built.table("executions").select("execution_id", "mode")
    transitions = built.table("transitions").join(executions, "execution_id")
    assert (set(transitions["mode"]), transitions.height) == (credited, 2 * len(credited))
    samples = built.table("samples").join(executions, "execution_id")
    assert set(samples["mode"]) == credited


def test_a_job_that_is_the_only_one_needs_no_other_process() -> None:
    with open_workers(2) as two:
        assert list(two.map(os.readlink, ["/proc/self"])) == [str(os.getpid())]
        assert str(os.getpid()) not in two.map(os.readlink, ["/proc/self"] * 3)


def test_the_variables_of_workers_are_theirs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_MAX_THREADS", "3")
    before = dict(os.environ)
    with open_workers(2) as two:
        for name, text in ENVIRONMENT.items():
            # polars writes its own options before those of the variable; the last one counts
            assert all(str(found).endswith(text) for found in two.map(os.getenv, [name] * 3))
    assert dict(os.environ) == before


BUILD = """
import sys
from pathlib import Path
from ltrain_collector.store import Store
from ltrain_transforms.datasets import build
from ltrain_transforms.recipe import Recipe

folder = Path(sys.argv[1])
with Store.open(f"chdb://{folder}/store") as store:
    build(store, Recipe.load(folder / "ltrain.toml"), folder / "out")
print("pandas" in sys.modules)
"""


def test_a_build_does_not_import_pandas(
    scene: Any, store: Store, recipe_file: Path, tmp_path: Path
) -> None:
    """It is a third of a second in each process that opens a store."""
    fill(scene)
    insert_otlp(store, scene.request())
    store.close()
    command = [sys.executable, "-c", BUILD, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"
