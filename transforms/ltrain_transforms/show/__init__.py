"""`ltrain show`: what an id names, for a terminal, a page, a notebook or a program."""

from ltrain_transforms.show.call_alignment import align_calls
from ltrain_transforms.show.group import Group, compare_task, read_group
from ltrain_transforms.show.lookup import (
    look_up,
    look_up_in_home,
    look_up_in_store,
    trained_run_report,
)
from ltrain_transforms.show.near_names import describe_near, near_references
from ltrain_transforms.show.notebook import Shown, show
from ltrain_transforms.show.page import (
    page_asset,
    page_templates,
    render_page,
    template_name,
    write_page,
)
from ltrain_transforms.show.rollout import recipe_or_default
from ltrain_transforms.show.terminal import print_shown
from ltrain_transforms.show.trained_rows import SHADES, trained_rows
from ltrain_transforms.show.tree import RolloutTree

__all__ = [
    "SHADES",
    "Group",
    "RolloutTree",
    "Shown",
    "align_calls",
    "compare_task",
    "describe_near",
    "look_up",
    "look_up_in_home",
    "look_up_in_store",
    "near_references",
    "page_asset",
    "page_templates",
    "print_shown",
    "read_group",
    "recipe_or_default",
    "render_page",
    "show",
    "template_name",
    "trained_rows",
    "trained_run_report",
    "write_page",
]
