"""Pages of policies, their deployment, and datasets."""

from collections.abc import Iterator, Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ltrain_collector.errors import NoStore, StoreUnreachable
from ltrain_transforms.reports import Report, dataset_table, policy_table
from ltrain_transforms.trials import deployment_report
from ltrain_ui.addresses import KeyLink, compare_address, deployment_address
from ltrain_ui.breadcrumbs import policy_crumbs
from ltrain_ui.pages.renderer import Renderer
from ltrain_ui.sources import Sources


class VersionPages:
    """Versions of policies and the datasets that they were trained on."""

    section = "Policies"
    """The section of the navigation."""

    def __init__(self, sources: Sources, renderer: Renderer) -> None:
        self._sources = sources
        self._renderer = renderer

    def routes(self) -> list[Route]:
        """Return the addresses and their functions."""
        return [
            Route("/policies", self.policies),
            Route("/datasets", self.datasets),
            Route("/policies/{id}", self.policy),
            Route("/policies/{name}/deployment", self.deployment),
            Route("/datasets/{id}", self.dataset),
        ]

    def policies(self, request: Request) -> Response:
        """List the policies of the home."""
        return self._renderer.show(Report("Policies", "", (policy_table(self._sources.home),), {}))

    def datasets(self, request: Request) -> Response:
        """List the datasets of the home."""
        report = Report("Datasets", "", (dataset_table(self._sources.home),), {})
        return self._renderer.show(report, section="Datasets")

    def policy(self, request: Request) -> Response:
        """Show a version of a policy and its lineage."""
        report = self._sources.look_up_in_home("policy", request.path_params["id"])
        own, *ancestors = report.data["lineage"]
        names = [f"{own['policy']}@{version['version']}" for version in (own, *ancestors[:1])]
        address = compare_address(names[-1], names[0], "val")
        links = [("Compare with its parent", "c", address)] if ancestors else []
        links.append(("Deployment", "d", deployment_address(own["policy"])))
        version = (f"v{own['version']}", None)
        return self._renderer.show(report, links, crumbs=policy_crumbs(own["policy"], version))

    def deployment(self, request: Request) -> Response:
        """Show which versions of a policy users meet, and how those of a trial differ."""
        sources, name = self._sources, request.path_params["name"]
        experiment = request.query_params.get("experiment", "")
        sources.look_up_in_home("policy", name)
        options = sources.load_recipe()[0].deploy
        show = partial(deployment_report, sources.home, name, options, experiment=experiment)
        try:
            report = sources.read(show)
        except (NoStore, StoreUnreachable) as error:
            report = show(error)
        links = _other_trials(name, report.data["trials"], experiment)
        crumbs = policy_crumbs(name, ("deployment", None))
        return self._renderer.show(report, list(links), crumbs=crumbs)

    def dataset(self, request: Request) -> Response:
        """Show a dataset, or how it differs from another one."""
        against = request.query_params.get("against")
        name = request.path_params["id"]
        report = self._sources.look_up_in_home("dataset", name, against)
        crumbs = [("Datasets", "/datasets"), (name, None)]
        return self._renderer.show(report, section="Datasets", crumbs=crumbs)


def _other_trials(name: str, trials: Sequence[str], shown: str) -> Iterator[KeyLink]:
    """Yield links to the trials before and after the one that is shown; "": the last one."""
    place = trials.index(shown) if shown else len(trials) - 1
    if place > 0:
        yield "Trial before", "k", deployment_address(name, trials[place - 1])
    if place + 1 < len(trials):
        yield "Next trial", "j", deployment_address(name, trials[place + 1])
