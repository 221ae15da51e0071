"""All pages, and their addresses."""

from starlette.routing import Route

from ltrain_ui.pages.comparison_pages import ComparisonPages
from ltrain_ui.pages.execution_pages import ExecutionPages
from ltrain_ui.pages.feedback_pages import FeedbackPages
from ltrain_ui.pages.live_pages import LivePages
from ltrain_ui.pages.query_pages import QueryPages
from ltrain_ui.pages.renderer import Renderer
from ltrain_ui.pages.run_pages import RunPages
from ltrain_ui.pages.version_pages import VersionPages
from ltrain_ui.sources import Sources

PAGES = (
    RunPages,
    ExecutionPages,
    FeedbackPages,
    ComparisonPages,
    VersionPages,
    QueryPages,
    LivePages,
)


def page_routes(sources: Sources) -> list[Route]:
    """Return the addresses of all pages, and the functions that answer them."""
    return [route for pages in PAGES for route in pages(sources, Renderer(pages.section)).routes()]
