"""Pages of runs: all of them, one, a wave, the rules on a wave, and a task."""

from collections.abc import Mapping
from hashlib import sha256

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ltrain_collector.errors import NoStore, StoreUnreachable
from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.reports import (
    Facts,
    Report,
    RunStatus,
    RunTable,
    WaveReference,
    collector_health,
    dataset_table,
    home_runs,
    newest_training_wave,
    policy_table,
    rules_comparison,
    run_state,
    run_watermark,
    running_tiles,
    task_report,
    wave_report,
)
from ltrain_transforms.show import SMOOTHINGS, ChartOptions, trained_run_report
from ltrain_ui.addresses import address_of, rules_address
from ltrain_ui.breadcrumbs import run_crumbs, wave_crumbs
from ltrain_ui.pages.renderer import Renderer
from ltrain_ui.sources import Sources


class RunPages:
    """Pages of runs and of their training."""

    section = "Runs"
    """The section of the navigation."""

    def __init__(self, sources: Sources, renderer: Renderer) -> None:
        self._sources = sources
        self._renderer = renderer
        self._runs = RunTable()

    def routes(self) -> list[Route]:
        """Return the addresses and their functions."""
        return [
            Route("/", self.overview),
            Route("/rules", self.newest_rules),
            Route("/runs/{run:path}/waves/{wave:int}", self.wave),
            Route("/runs/{run:path}/waves/{wave:int}/rules", self.rules),
            Route("/runs/{run:path}/tasks/{task:path}", self.task),
            Route("/runs/{run:path}", self.run),
        ]

    def overview(self, request: Request) -> Response:
        """Show the runs of the store, and the policies and datasets of the home."""
        sources = self._sources
        try:
            trust = sources.trusted_senders()
            health = sources.read(collector_health)
            store = sources.read(lambda store: self._runs.read(store, sources.home, trust))
        except (NoStore, StoreUnreachable) as error:
            store, health = home_runs(sources.home), Facts("Store", (("store", str(error)),))
        home = sources.home
        running = running_tiles(home)
        parts = (
            *((running,) if running.rows else ()),
            *(health, store, policy_table(home), dataset_table(home)),
        )
        report = Report("Runs, policies and datasets", "", parts, {})
        version = f'"{sha256(repr(report).encode()).hexdigest()[:16]}"'
        return self._renderer.show_live(report, version, self._runs.is_reading)

    def run(self, request: Request) -> Response:
        """Show a run: curves by evaluation and rule, and its waves."""
        name, sources = request.path_params["run"], self._sources
        trust = sources.trusted_senders()
        version = sources.read(lambda store: run_watermark(store, sources.home, name))
        if request.headers.get("if-none-match") == version:
            return Response(status_code=304, headers={"etag": version})
        report = sources.read(lambda store: trained_run_report(store, sources.home, name, trust))
        is_live = run_state(sources.home, name).status is RunStatus.RUNNING
        options = chart_options(request.query_params)
        crumbs = run_crumbs(name)
        return self._renderer.show_live(
            report, version, is_live, crumbs=crumbs, chart_options=options
        )

    def wave(self, request: Request) -> Response:
        """Show a wave: what is left of its rollouts at each step, and its groups."""
        wave, sources = _wave(request), self._sources
        trust = sources.trusted_senders()
        report = sources.read(lambda store: wave_report(store, sources.home, wave, trust))
        links = [("What rules give on it", "r", rules_address(wave))]
        return self._renderer.show(report, links, crumbs=wave_crumbs(wave))

    def rules(self, request: Request) -> Response:
        """Show what the recipe gives on a wave now, and what it gave when it was trained."""
        wave, sources = _wave(request), self._sources
        recipe, label = sources.load_recipe()
        report = sources.read(
            lambda store: rules_comparison(store, sources.home, recipe, label, wave)
        )
        links = [("Wave", "u", str(address_of(wave)))]
        return self._renderer.show(report, links, crumbs=wave_crumbs(wave, ("rules", None)))

    def newest_rules(self, request: Request) -> Response:
        """Lead to what the recipe gives on the newest training wave."""
        wave = self._sources.read(newest_training_wave)
        if wave is None:
            raise NothingToShow(
                "The store has no training wave. `ltrain rules --help` tests rules on other traces."
            )
        return RedirectResponse(rules_address(wave), 303)

    def task(self, request: Request) -> Response:
        """Show a task of a run, wave by wave."""
        place, sources = request.path_params, self._sources
        name, trust = request.query_params.get("name", "reward"), sources.trusted_senders()
        run, task = place["run"], place["task"]
        return self._renderer.show(
            sources.read(lambda store: task_report(store, run, task, name, trust)),
            crumbs=run_crumbs(run, (task, None)),
        )


def chart_options(values: Mapping[str, str]) -> ChartOptions:
    """Return how the charts of a page are drawn, by its address; another value is the default."""
    smoothing = {f"{weight}": weight for weight in SMOOTHINGS}.get(values.get("smooth", ""), 0.0)
    return ChartOptions(values.get("scale") == "log", smoothing)


def _wave(request: Request) -> WaveReference:
    """Return the wave of an address."""
    place = request.path_params
    return WaveReference(place["run"], request.query_params.get("mode", "train"), place["wave"])
