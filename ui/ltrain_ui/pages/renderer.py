"""Pages made from the templates of `ltrain show` and of this package."""

from collections.abc import Sequence
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader
from starlette.responses import HTMLResponse, Response

from ltrain_transforms.reports import Report
from ltrain_transforms.show import RolloutTree, page_templates, template_name
from ltrain_ui.addresses import KeyLink, address_of

FRAME = "frame.html.j2"


class Renderer:
    """The templates, with the frame and the addresses of these pages."""

    def __init__(self) -> None:
        shared = page_templates()
        assert shared.loader is not None
        loader = ChoiceLoader([PackageLoader("ltrain_ui"), shared.loader])
        self._templates: Environment = shared.overlay(loader=loader)

    def page(self, template: str, status: int = 200, /, **values: Any) -> Response:
        """Return a page from a template and its values."""
        values = {
            "layout": FRAME,
            "href": address_of,
            "links": (),
            "live": None,
            "near": (),
            **values,
        }
        text = self._templates.get_template(template).render(values)
        return HTMLResponse(text, status)

    def show(self, shown: RolloutTree | Report, links: Sequence[KeyLink] = ()) -> Response:
        """Return the page that `ltrain show --html` writes, in the frame of these pages."""
        return self.page(template_name(shown), title=shown.title, shown=shown, links=links)

    def show_live(self, shown: Report, version: str, is_live: bool) -> Response:
        """Return a page that `ui.js` requests again while it is live, with its `ETag`."""
        live = version if is_live else None
        response = self.page(template_name(shown), title=shown.title, shown=shown, live=live)
        response.headers["etag"] = version
        return response
