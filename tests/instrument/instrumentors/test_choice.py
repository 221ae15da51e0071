"""The choice of instrumentors, with fake distributions at the process border."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ltrain_instrument.instrumentors.choice import (
    InstrumentorChoice,
    choose_instrumentors,
    requested_providers,
)
from ltrain_instrument.instrumentors.diagnosis import State, check_instrumentor
from ltrain_instrument.instrumentors.libraries import LIBRARIES
from ltrain_instrument.instrumentors.library import find_function

if TYPE_CHECKING:
    from tests.instrument.conftest import Start

ROOT = Path(__file__).parents[3]
INSTRUMENTOR = """
import builtins
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

class {name}(BaseInstrumentor):
    def instrumentation_dependencies(self):
        return ()

    def _instrument(self, **kwargs):
        builtins.instrumented = [*getattr(builtins, "instrumented", []), "{provider}"]
        {then}

    def _uninstrument(self, **kwargs):
        pass
"""

OPENAI = {
    "traceloop": "opentelemetry-instrumentation-openai",
    "openinference": "openinference-instrumentation-openai",
    "opentelemetry": "opentelemetry-instrumentation-genai-openai",
    "opentelemetry-v2": "opentelemetry-instrumentation-openai-v2",
}

Install = Callable[..., None]


def distribution(
    site: Path, name: str, version: str = "1.0", *, entries: str = "", wants: str = ""
) -> None:
    metadata = site / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    requirements = f"Provides-Extra: instruments\nRequires-Dist: {wants}; extra == 'instruments'\n"
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requirements if wants else ''}"
    )
    if entries:
        (metadata / "entry_points.txt").write_text(f"[opentelemetry_instrumentor]\n{entries}\n")


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Return a function that installs a fake instrumentor in the folder `site`."""
    site = tmp_path / "site"

    def make(
        name: str, library: str, provider: str, *, wants: str = "", then: str = "", head: str = ""
    ) -> None:
        module = f"fake_{re.sub('[^a-z0-9]', '_', name)}"
        distribution(site, name, entries=f"{library} = {module}:Fake", wants=wants)
        text = INSTRUMENTOR.format(name="Fake", provider=provider, then=then or "pass")
        (site / f"{module}.py").write_text(head + text)

    return make


def library(tmp_path: Path, name: str, version: str = "1.0", text: str = "") -> None:
    site = tmp_path / "site"
    distribution(site, name, version)
    module = site / name.replace("-", "_").removesuffix("_slim")
    module.mkdir()
    (module / "__init__.py").write_text(text)
    (module / "resources.py").touch()  # openai imports its resources on first use


def run(
    start: Start,
    tmp_path: Path,
    *args: str,
    uninstrumented: bool = False,
    environ: Mapping[str, str] | None = None,
) -> tuple[int, str, str]:
    # the fake distributions precede the real ones of the same name
    path = f"{tmp_path / 'site'}:{os.environ.get('PYTHONPATH', '')}"
    variables = {"PYTHONPATH": path, **(environ or {})}
    return start("imports", *args, uninstrumented=uninstrumented, **variables).wait()


@pytest.mark.parametrize(
    ("environ", "loaded"),
    [
        ({}, "traceloop"),
        ({"LTRAIN_INSTRUMENTORS": "openai=openinference"}, "openinference"),
        ({"LTRAIN_INSTRUMENTORS": " openai = opentelemetry-v2 , mcp=none"}, "opentelemetry-v2"),
        ({"LTRAIN_INSTRUMENTORS": "openai=none"}, ""),
        ({"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "openai"}, ""),
    ],
    ids=str,
)
def test_one_of_four_is_active(
    start: Start, install: Install, tmp_path: Path, environ: dict[str, str], loaded: str
) -> None:
    for provider, name in OPENAI.items():
        install(name, "openai", provider)
    library(tmp_path, "openai")
    assert run(start, tmp_path, "openai.resources", environ=environ) == (0, f"{loaded}\n", "")


@pytest.mark.parametrize(
    ("environ", "loaded"),
    [
        ({}, "traceloop"),
        ({"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*"}, ""),
        ({"OTEL_SDK_DISABLED": "true"}, ""),
    ],
    ids=str,
)
def test_configure_chooses_as_well(
    start: Start, install: Install, tmp_path: Path, environ: dict[str, str], loaded: str
) -> None:
    for provider, name in OPENAI.items():
        install(name, "openai", provider)
    library(tmp_path, "openai")
    result = run(
        start, tmp_path, "openai.resources", "configure", uninstrumented=True, environ=environ
    )
    assert result == (0, f"{loaded}\n", "")


def test_an_invalid_choice_is_a_warning_and_the_default_is_used(
    start: Start, install: Install, tmp_path: Path
) -> None:
    install(OPENAI["traceloop"], "openai", "traceloop")
    library(tmp_path, "openai")
    invalid = "openai=traceloup,opnai=traceloop"
    status, out, err = run(
        start, tmp_path, "openai.resources", environ={"LTRAIN_INSTRUMENTORS": invalid}
    )
    assert (status, out) == (0, "traceloop\n")
    first, second = err.splitlines()
    assert first == (
        "ltrain: Unknown instrumentor of openai in LTRAIN_INSTRUMENTORS 'traceloup'. Choose from: "
        "none, openinference, opentelemetry, opentelemetry-v2, traceloop. "
        "Did you mean 'traceloop'?"
    )
    assert "Unknown library in LTRAIN_INSTRUMENTORS 'opnai'" in second
    assert second.endswith("Did you mean 'openai'?")
    status, out, err = run(
        start, tmp_path, "openai.resources", environ={"LTRAIN_INSTRUMENTORS": "openai"}
    )
    assert (status, out) == (0, "traceloop\n")
    assert err.startswith("ltrain: LTRAIN_INSTRUMENTORS: 'openai' in 'openai' is not a pair. ")


def test_an_instrumentor_for_another_version_is_skipped_without_output(
    start: Start, install: Install, tmp_path: Path
) -> None:
    install(OPENAI["traceloop"], "openai", "traceloop", wants="openai<1")
    install(OPENAI["openinference"], "openai", "openinference", wants="openai>=1")
    library(tmp_path, "openai", "2.5")
    assert run(start, tmp_path, "openai.resources") == (0, "openinference\n", "")


def test_an_unneeded_package_may_be_missing(start: Start, install: Install, tmp_path: Path) -> None:
    """OpenTelemetry's loader skips the instrumentor."""
    wants = "llama-index-multi-modal-llms-openai>=0.1.7"
    install("openinference-instrumentation-llama-index", "llama_index", "here", wants=wants)
    site = tmp_path / "site"
    (site / "llama_index" / "core").mkdir(parents=True)
    (site / "llama_index" / "core" / "__init__.py").write_text("")
    assert run(start, tmp_path, "llama_index.core") == (0, "here\n", "")
    distribution(site, "llama-index-multi-modal-llms-openai", "0.9")
    assert run(start, tmp_path, "llama_index.core") == (0, "here\n", "")
    off = {"LTRAIN_INSTRUMENTORS": "llama-index=none"}
    assert run(start, tmp_path, "llama_index.core", environ=off) == (0, "\n", "")


def test_a_library_without_a_usable_instrumentor_is_one_warning_on_use(
    start: Start, install: Install, tmp_path: Path
) -> None:
    for name in ("opentelemetry-instrumentation-crewai", "openinference-instrumentation-crewai"):
        install(name, "crewai", "x", wants="crewai>=9")
    library(tmp_path, "crewai")
    assert run(start, tmp_path) == (0, "\n", "")
    status, out, err = run(start, tmp_path, "crewai")
    assert (status, out) == (0, "\n")
    (line,) = err.splitlines()
    assert line.startswith("ltrain: crewai is used, but none of its instrumentors is usable (")
    assert "crewai>=9" in line


@pytest.mark.parametrize(
    ("order", "environ", "warned"),
    [
        (["pydantic_ai", "openai.resources"], {}, False),
        (["openai", "pydantic_ai", "openai.resources"], {}, False),
        (["openai.resources"], {}, True),  # nothing that records its calls is in use
        (["crewai", "openai.resources"], {}, True),  # its spans have no calls of a model
        (
            ["pydantic_ai", "openai.resources"],
            {"LTRAIN_INSTRUMENTORS": "pydantic-ai=none"},
            True,
        ),
    ],
)
def test_a_client_needs_no_instrumentor_where_a_framework_records_its_calls(
    start: Start,
    install: Install,
    tmp_path: Path,
    order: list[str],
    environ: Mapping[str, str],
    warned: bool,
) -> None:
    for name in ("openai", "crewai"):
        library(tmp_path, name)
    library(tmp_path, "pydantic-ai-slim", text="class Agent:\n    instrument_all = lambda: None\n")
    install("openinference-instrumentation-crewai", "crewai", "crewai")
    for name in OPENAI.values():  # hides those that are installed here
        install(name, "openai", "none", wants="openai>=99")
    status, _, err = run(start, tmp_path, *order, environ=environ)
    lines = [line.partition(" is used")[0] for line in err.splitlines()]
    assert (status, lines) == (0, ["ltrain: openai"] if warned else [])


def test_a_failing_instrumentor_is_one_warning(
    start: Start, install: Install, tmp_path: Path
) -> None:
    install("opentelemetry-instrumentation-crewai", "crewai", "x", then="1 / 0")
    head = "import opentelemetry.there_is_none\n"
    install("openinference-instrumentation-mcp", "mcp", "y", head=head)
    install("a-new-one", "unknown", "z", head=head)
    library(tmp_path, "crewai")
    library(tmp_path, "mcp")
    status, _, err = run(start, tmp_path, "crewai", "mcp")
    assert status == 0
    assert [line.partition(" failed")[0] for line in err.splitlines()] == [
        "ltrain: instrumentor 'unknown' (fake_a_new_one:Fake)",
        "ltrain: instrumentor 'crewai' (fake_opentelemetry_instrumentation_crewai:Fake)",
        "ltrain: instrumentor 'mcp' (fake_openinference_instrumentation_mcp:Fake)",
    ]


def test_an_instrumentor_of_a_missing_framework_is_skipped_without_output(
    start: Start, install: Install, tmp_path: Path
) -> None:
    install("a-new-one", "unknown", "z", head="import a_framework\n")
    install("openinference-instrumentation-crewai", "crewai", "x", wants="crewai>=9")
    assert run(start, tmp_path) == (0, "\n", "")


def test_a_program_may_have_a_package_with_the_name_of_a_framework(
    start: Start, install: Install, tmp_path: Path
) -> None:
    head = "from agents import set_trace_processors\n"
    install("openinference-instrumentation-openai-agents", "openai_agents", "oi", head=head)
    library(tmp_path, "agents")
    assert run(start, tmp_path, "agents") == (0, "\n", "")
    package = tmp_path / "site" / "agents"
    (package / "tracing.py").write_text("")
    # the name is defined after the import of the marker module
    (package / "__init__.py").write_text("from . import tracing\nset_trace_processors = 1\n")
    assert run(start, tmp_path, "agents") == (0, "oi\n", "")


def test_pydantic_ai_is_switched_on(start: Start, tmp_path: Path) -> None:
    agent = (
        "import builtins\n"
        "class Agent:\n"
        "    @staticmethod\n"
        "    def instrument_all():\n"
        "        builtins.instrumented = ['built in']\n"
    )
    library(tmp_path, "pydantic-ai-slim", "2.68.0", agent)
    assert run(start, tmp_path, "pydantic_ai") == (0, "built in\n", "")
    off = {"LTRAIN_INSTRUMENTORS": "pydantic-ai=none"}
    assert run(start, tmp_path, "pydantic_ai", environ=off) == (0, "\n", "")
    off = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "pydantic_ai"}
    assert run(start, tmp_path, "pydantic_ai", environ=off) == (0, "\n", "")


def test_built_in_telemetry_of_mcp_needs_no_instrumentor(
    start: Start, install: Install, tmp_path: Path
) -> None:
    install("opentelemetry-instrumentation-mcp", "mcp", "traceloop")
    library(tmp_path, "mcp", "2.3.0")
    assert run(start, tmp_path, "mcp") == (0, "\n", "")
    selected = {"LTRAIN_INSTRUMENTORS": "mcp=traceloop"}
    assert run(start, tmp_path, "mcp", environ=selected) == (0, "traceloop\n", "")


def test_only_the_imported_library_of_a_shared_instrumentor_is_instrumented(
    start: Start, tmp_path: Path
) -> None:
    """The instrumentor of httpx also imports httpx2 if it is installed."""
    site = tmp_path / "site"
    distribution(
        site,
        "opentelemetry-instrumentation-httpx",
        entries="httpx = fake_httpx:Httpx\nhttpx2 = fake_httpx:Httpx2",
    )
    first = INSTRUMENTOR.format(name="Httpx", provider="httpx", then="import httpx")
    second = INSTRUMENTOR.format(name="Httpx2", provider="httpx2", then="import httpx2")
    (site / "fake_httpx.py").write_text(
        "import contextlib\nwith contextlib.suppress(ImportError):\n    import httpx\n"
        + first
        + second
    )
    (site / "httpx2.py").write_text("")
    (site / "httpx.py").write_text("raise ModuleNotFoundError('httpx')\n")
    assert run(start, tmp_path, "httpx2") == (0, "httpx2\n", "")
    (site / "httpx.py").write_text("")
    assert run(start, tmp_path, "httpx2") == (0, "httpx2 httpx\n", "")


def test_rejected_instrumentors_have_a_reason(install: Install, tmp_path: Path) -> None:
    for provider, name in OPENAI.items():
        install(name, "openai", provider, wants="openai<1" if provider == "opentelemetry" else "")
    library(tmp_path, "openai", "2.0")
    result = _choices(tmp_path, {"openai": "openinference"})["openai"]
    assert result.instrumentor is not None
    assert result.instrumentor.provider == "openinference"
    assert list(result.rejected) == [
        OPENAI[it] for it in ("traceloop", "opentelemetry", "opentelemetry-v2")
    ]
    assert result.rejected[OPENAI["traceloop"]] == "openinference is preferred"
    assert _choices(tmp_path, {"openai": "none"})["openai"].off


def _choices(tmp_path: Path, providers: dict[str, str]) -> dict[str, InstrumentorChoice]:
    entries: list[EntryPoint] = []
    installed: list[Distribution] = list(distributions(path=[str(tmp_path / "site")]))
    for each in installed:
        entries += each.entry_points
    return choose_instrumentors(providers, frozenset(), entries)


def test_doctor_names_the_framework_that_records_a_client(install: Install, tmp_path: Path) -> None:
    library(tmp_path, "openai", "2.0")
    library(tmp_path, "smolagents")
    install("openinference-instrumentation-smolagents", "smolagents", "oi")
    finding = check_instrumentor(_choices(tmp_path, {}), "openai")
    assert (finding.state, finding.detail) == (
        State.NOTE,
        "not instrumented: only its calls by smolagents leave spans",
    )
    finding = check_instrumentor(_choices(tmp_path, {"smolagents": "none"}), "openai")
    assert finding.state == State.FAULT
    assert "openai is used, but its instrumentor is not installed" in finding.detail


def test_providers_are_unique_per_library() -> None:
    for each in LIBRARIES:
        providers = [it.provider for it in each.instrumentors]
        assert len(providers) == len(set(providers)), each.name
        assert all(it.limitations for it in each.instrumentors), each.name
    assert requested_providers({"LTRAIN_INSTRUMENTORS": "openai=openinference"}) == (
        {"openai": "openinference"},
        [],
    )


def test_the_extra_of_a_library_installs_its_first_instrumentor() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {
        extra: re.split(r"[^\w-]", requirements[0])[0]
        for extra, requirements in project["optional-dependencies"].items()
        if extra not in ("collect", "serve", "train", "dev")
    }
    first = {each.extra: each.instrumentors[0].distribution for each in LIBRARIES if each.extra}
    assert declared == first


def test_the_patch_of_a_library_has_its_name_and_a_function() -> None:
    patched = [each for each in LIBRARIES if each.patch or each.install_patch]
    assert {"autogen", "crewai", "haystack"} < {each.name for each in patched}
    for each in patched:
        assert each.patch is not None and each.patch.name == each.name
        assert callable(find_function(each.install_patch))
