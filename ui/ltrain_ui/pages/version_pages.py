"""Pages of policies and datasets."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ltrain_ui.addresses import compare_address
from ltrain_ui.pages.renderer import Renderer
from ltrain_ui.sources import Sources


class VersionPages:
    """Versions of policies and the datasets that they were trained on."""

    def __init__(self, sources: Sources, renderer: Renderer) -> None:
        self._sources = sources
        self._renderer = renderer

    def routes(self) -> list[Route]:
        """Return the addresses and their functions."""
        return [Route("/policies/{id}", self.policy), Route("/datasets/{id}", self.dataset)]

    def policy(self, request: Request) -> Response:
        """Show a version of a policy and its lineage."""
        report = self._sources.look_up_in_home("policy", request.path_params["id"])
        own, *ancestors = report.data["lineage"]
        names = [f"{own['policy']}@{version['version']}" for version in (own, *ancestors[:1])]
        address = compare_address(names[-1], names[0], "val")
        links = [("Compare with its parent", "c", address)] if ancestors else []
        return self._renderer.show(report, links)

    def dataset(self, request: Request) -> Response:
        """Show a dataset, or how it differs from another one."""
        against = request.query_params.get("against")
        return self._renderer.show(
            self._sources.look_up_in_home("dataset", request.path_params["id"], against)
        )
