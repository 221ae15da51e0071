"""Executions and reports as HTML, for a file, a notebook or a server."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.show.pages.charts import SMOOTHINGS, ChartOptions
    from ltrain_transforms.show.pages.page import (
        CallParts,
        page_asset,
        page_templates,
        render_body,
        render_page,
        render_rows,
        template_name,
        tree_values,
        write_page,
    )

open_face(__name__)
