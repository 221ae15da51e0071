"""`ltrain show` and `ltrain rules`: reports for a terminal, a page or a program."""

from ltrain_transforms.show.dataset import dataset_report
from ltrain_transforms.show.lookup import look_up
from ltrain_transforms.show.page import render_page, write_page
from ltrain_transforms.show.rules_report import render_report, report_rules
from ltrain_transforms.show.terminal import print_shown

__all__ = [
    "dataset_report",
    "look_up",
    "print_shown",
    "render_page",
    "render_report",
    "report_rules",
    "write_page",
]
