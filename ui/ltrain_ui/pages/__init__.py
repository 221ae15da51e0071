"""The pages: each reads what it shows, and renders it with the templates of `ltrain show`."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_ui.pages.registry import page_routes
    from ltrain_ui.pages.renderer import Renderer

open_face(__name__)
