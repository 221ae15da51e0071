"""`ltrain show`: what an id names, for a terminal, a page, a notebook or a program."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.show.call_alignment import align_calls
    from ltrain_transforms.show.group import Group, compare_task, read_group
    from ltrain_transforms.show.lookup import (
        find_reference,
        look_up,
        look_up_in_home,
        trained_run_report,
    )
    from ltrain_transforms.show.near_names import describe_near, near_references
    from ltrain_transforms.show.notebook import Shown, show
    from ltrain_transforms.show.pages import (
        SMOOTHINGS,
        CallParts,
        ChartOptions,
        page_asset,
        page_templates,
        render_body,
        render_page,
        render_rows,
        template_name,
        tree_values,
        write_page,
    )
    from ltrain_transforms.show.rollout import Extent, recipe_of_group, recipe_or_default
    from ltrain_transforms.show.stored_execution import (
        SpansState,
        StoredExecution,
        StoredGroup,
        find_execution,
    )
    from ltrain_transforms.show.terminal import print_shown
    from ltrain_transforms.show.trained_rows import SHADES, call_rows, trained_rows
    from ltrain_transforms.show.trained_tables import TrainedDataset
    from ltrain_transforms.show.tree import Attempt, RolloutTree

open_face(__name__)
