"""`ltrain show` and `ltrain rules`: reports for a terminal, a page or a program."""

from ltrain_transforms.show.comparison import compare, compare_task, read_scores
from ltrain_transforms.show.dataset import dataset_report
from ltrain_transforms.show.group import Group, read_group
from ltrain_transforms.show.lookup import (
    look_up,
    look_up_in_home,
    look_up_in_store,
    trained_run_report,
)
from ltrain_transforms.show.notebook import Shown, show
from ltrain_transforms.show.overview import dataset_table, policy_table, run_table
from ltrain_transforms.show.page import (
    page_asset,
    page_templates,
    render_page,
    template_name,
    write_page,
)
from ltrain_transforms.show.references import GroupReference, Kind, Reference, WaveReference
from ltrain_transforms.show.report import Facts, Grid, Report
from ltrain_transforms.show.rollout import recipe_or_default
from ltrain_transforms.show.rules_comparison import rules_comparison
from ltrain_transforms.show.rules_report import render_report, report_rules
from ltrain_transforms.show.task import task_report
from ltrain_transforms.show.terminal import print_shown
from ltrain_transforms.show.trained_rows import SHADES, trained_rows
from ltrain_transforms.show.tree import RolloutTree
from ltrain_transforms.show.wave import wave_report

__all__ = [
    "SHADES",
    "Facts",
    "Grid",
    "Group",
    "GroupReference",
    "Kind",
    "Reference",
    "Report",
    "RolloutTree",
    "Shown",
    "WaveReference",
    "compare",
    "compare_task",
    "dataset_report",
    "dataset_table",
    "look_up",
    "look_up_in_home",
    "look_up_in_store",
    "page_asset",
    "page_templates",
    "policy_table",
    "print_shown",
    "read_group",
    "read_scores",
    "recipe_or_default",
    "render_page",
    "render_report",
    "report_rules",
    "rules_comparison",
    "run_table",
    "show",
    "task_report",
    "template_name",
    "trained_rows",
    "trained_run_report",
    "wave_report",
    "write_page",
]
