"""Pages made from the templates of `ltrain show` and of this package."""

from collections.abc import Sequence
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader
from starlette.responses import HTMLResponse, Response

from ltrain_transforms.reports import Report
from ltrain_transforms.show import (
    CallParts,
    RolloutTree,
    page_templates,
    render_body,
    render_rows,
    template_name,
)
from ltrain_ui.addresses import KeyLink, address_of

FRAME = "frame.html.j2"
MENU = (
    (
        "",
        (
            ("Runs", "/"),
            ("Rollouts", "/rollouts"),
            ("Live", "/live"),
            ("Policies", "/policies"),
            ("Datasets", "/datasets"),
        ),
    ),
    ("Judge", (("Feedback", "/feedback"), ("Compare", "/compare"))),
    ("Ask", (("SQL", "/sql"), ("Rules", "/rules"))),
)
"""The sections of the navigation: a title, and the names and addresses of pages."""
Crumbs = Sequence[tuple[str, str | None]]
"""The places above a page, from the outermost: text and address; the last one is the page."""


class Renderer:
    """The templates, with the frame and the addresses of these pages."""

    def __init__(self, section: str = "") -> None:
        """Prepare the templates; `section` is the name in the navigation that is marked."""
        self._section = section
        shared = page_templates()
        assert shared.loader is not None
        loader = ChoiceLoader([PackageLoader("ltrain_ui"), shared.loader])
        self._templates: Environment = shared.overlay(loader=loader)

    def page(self, template: str, status: int = 200, /, **values: Any) -> Response:
        """Return a page from a template and its values."""
        values = {
            "layout": FRAME,
            "href": address_of,
            "menu": MENU,
            "section": self._section,
            "crumbs": (),
            "links": (),
            "live": None,
            "near": (),
            "chart_options": None,
            "chart_fields": (),
            **values,
        }
        text = self._templates.get_template(template).render(values)
        return HTMLResponse(text, status)

    def show(
        self, shown: RolloutTree | Report, links: Sequence[KeyLink] = (), **values: Any
    ) -> Response:
        """Return the page that `ltrain show --html` writes, in the frame of these pages.

        Args:
            values: of a tree: `tree_values`.
        """
        values = {"title": shown.title, "shown": shown, "links": links, **values}
        return self.page(template_name(shown), **values)

    def rows(self, shown: RolloutTree, attempt: int, start: int) -> str:
        """Return a block of rows of calls, for a page that has the rows before them."""
        return render_rows(shown, attempt, start, self._templates)

    def body(
        self, shown: RolloutTree, attempt: int, position: int, feedback: object, parts: CallParts
    ) -> str:
        """Return the body of a call, with its form for feedback and the address of its parts."""
        return render_body(shown, attempt, position, self._templates, feedback, parts)

    def show_live(self, shown: Report, version: str, is_live: bool, **values: Any) -> Response:
        """Return a page that `ui.js` requests again while it is live, with its `ETag`."""
        live = version if is_live else None
        response = self.page(
            template_name(shown), title=shown.title, shown=shown, live=live, **values
        )
        response.headers["etag"] = version
        return response
