"""Each patch of a process has a switch: with it, a real process has the original functions."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ltrain_instrument import patches
from ltrain_instrument.distro import DEFAULTS
from ltrain_instrument.instrumentors import LIBRARIES, PATCHES, State, diagnosis
from ltrain_instrument.patches import Patch

if TYPE_CHECKING:
    from tests.instrument.conftest import Sink, Start

POLICY = {"LTRAIN_POLICY_URLS": "http://127.0.0.1:1/v1"}
"""Without it, no HTTP client is patched."""
FAKES = {"autogen_agentchat": "autogen-agentchat", "crewai": "crewai", "mcp": "mcp"} | {
    "llama_index": "llama-index-core",
    "haystack": "haystack-ai",
    "dspy": "dspy",
}
"""Frameworks that have environments of their own: their packages and distributions."""
AGENT_PATCHES = [patch for patch in PATCHES if patch is not patches.WORKER_EXIT]
"""The patches of every instrumented process."""
EXPECTED = ("its instrumentor is not installed", "not loaded because")
"""In warnings about the fakes, and in those that are hidden unless `log-filters` is off."""
REPLACING = [patch for patch in AGENT_PATCHES if patch.targets]
TARGETS = [target for patch in REPLACING for target in patch.targets]


def write_fakes(folder: Path) -> None:
    """Write modules with the functions that ltrain patches in frameworks that are not installed."""
    for target in TARGETS:
        module, _, path = target.partition(":")
        package = module.partition(".")[0]
        if package not in FAKES or _is_installed(FAKES[package]):
            continue
        *parents, name = module.split(".")
        parent = folder.joinpath(*parents)
        parent.mkdir(parents=True, exist_ok=True)
        for at in range(1, len(parents) + 1):
            (folder.joinpath(*parents[:at]) / "__init__.py").touch()
        owner, _, method = path.rpartition(".")
        code = f"async def {method}(*args, **kwargs): ...\n"
        if owner:
            code = f"class {owner}(globals().get('{owner}', object)):\n    {code}"
        with (parent / f"{name}.py").open("a") as file:
            file.write(code)


def _is_installed(distribution: str) -> bool:
    try:
        return bool(version(distribution))
    except PackageNotFoundError:
        return False


def changes(start: Start, folder: Path, *targets: str, **environ: str) -> dict[str, Any]:
    write_fakes(folder / "fakes")
    agent = start("patched", *targets, PYTHONPATH=str(folder / "fakes"), **POLICY, **environ)
    status, out, err = agent.wait(120)
    assert status == 0, err
    warnings = [line for line in err.splitlines() if not any(each in line for each in EXPECTED)]
    assert warnings == []
    result: dict[str, Any] = json.loads(out)
    return result


def test_every_declared_function_is_patched_and_no_other(start: Start, tmp_path: Path) -> None:
    result = changes(start, tmp_path, *TARGETS)
    assert result["missing"] == []
    assert result["changed"] == TARGETS
    wrapped = {name for name in result["wrapped"] if "<locals>" not in name}
    assert wrapped <= {target.partition(":")[2] for target in TARGETS}
    assert len(result["filtered"]) == 2


@pytest.mark.parametrize(
    "patch",
    [REPLACING[0], *(pytest.param(each, marks=pytest.mark.nightly) for each in REPLACING[1:])],
    ids=lambda patch: patch.name,
)
def test_a_switch_leaves_the_original_functions(start: Start, tmp_path: Path, patch: Patch) -> None:
    other = patches.EXIT if patch is patches.SIGNALS else patches.SIGNALS
    result = changes(
        start,
        tmp_path,
        *patch.targets,
        *other.targets,
        LTRAIN_DISABLED_PATCHES=patch.name,
    )
    assert result["missing"] == []
    assert result["changed"] == list(other.targets)


def test_the_switch_of_log_filters(start: Start, tmp_path: Path) -> None:
    result = changes(start, tmp_path, LTRAIN_DISABLED_PATCHES=patches.LOG_FILTERS.name)
    assert result["filtered"] == []


@pytest.mark.parametrize("off", [False, True])
def test_the_switch_of_atexit(start: Start, sink: Sink, tmp_path: Path, off: bool) -> None:
    changes(start, tmp_path, LTRAIN_DISABLED_PATCHES=patches.ATEXIT.name if off else "")
    assert len(sink.named("open")) == (0 if off else 1)


@pytest.mark.parametrize(
    "environ",
    [
        {"LTRAIN_DISABLED_PATCHES": "*"},
        pytest.param({"OTEL_SDK_DISABLED": "true"}, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_all_patches_are_off(start: Start, tmp_path: Path, environ: dict[str, str]) -> None:
    result = changes(start, tmp_path, *TARGETS, **environ)
    assert result["changed"] == result["wrapped"] == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "patch"), [(each.name, each.patch) for each in LIBRARIES if each.patch]
)
def test_the_switch_of_a_library_applies_to_its_patch(
    start: Start, tmp_path: Path, name: str, patch: Patch
) -> None:
    off = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": name}
    assert changes(start, tmp_path, *patch.targets, **off)["changed"] == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("off", ["", "threading", "*"])
@pytest.mark.parametrize("from_code", [False, True])
def test_threads_can_be_left_alone(start: Start, from_code: bool, off: str) -> None:
    agent = start(
        "patched",
        *(["configure"] if from_code else []),
        uninstrumented=from_code,
        OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=off,
    )
    status, out, err = agent.wait()
    assert (status, err) == (0, "")
    assert json.loads(out)["threads"] is (not off)


def test_the_switches_apply_beside_another_provider(start: Start) -> None:
    targets = [*patches.SIGNALS.targets, *patches.EXIT.targets]
    off = {"LTRAIN_DISABLED_PATCHES": "signals,typo"}
    status, out, err = start("patched", "configure", *targets, uninstrumented=True, **off).wait()
    assert status == 0
    assert json.loads(out)["changed"] == list(patches.EXIT.targets)
    assert len(err.splitlines()) == 1


def test_an_unknown_name_is_one_warning_and_the_others_apply(start: Start, tmp_path: Path) -> None:
    names = {"LTRAIN_DISABLED_PATCHES": "signal,exit"}
    status, out, err = start("patched", "os:_exit", "signal:signal", **names).wait()
    assert status == 0
    assert json.loads(out)["changed"] == ["signal:signal"]
    (warning,) = err.splitlines()
    assert "Unknown patch in LTRAIN_DISABLED_PATCHES 'signal'" in warning
    assert "Did you mean 'signals'?" in warning
    (finding,) = diagnosis.check_settings(names)
    assert (finding.name, finding.state) == ("LTRAIN_DISABLED_PATCHES", State.FAULT)


def test_variables_that_the_environment_sets_stay(start: Start, tmp_path: Path) -> None:
    own = dict.fromkeys(DEFAULTS, "1") | {"OTEL_TRACES_EXPORTER": "none"}
    own |= {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json", "OTEL_PROPAGATORS": "baggage"}
    own |= {"OTEL_LOGS_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}
    own["OTEL_TRACES_SAMPLER"] = "parentbased_always_on"
    own["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "true"
    assert changes(start, tmp_path, **own)["environ"] == own
    assert changes(start, tmp_path, OTEL_SDK_DISABLED="true")["environ"] == {}


def test_names_are_unique() -> None:
    names = [patch.name for patch in PATCHES]
    assert len(set(names)) == len(names)
