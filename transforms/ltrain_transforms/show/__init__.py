"""`ltrain show` and `ltrain rules`: reports for a terminal, a page or a program."""

from ltrain_transforms.show import dataset, page, terminal
from ltrain_transforms.show.lookup import look_up
from ltrain_transforms.show.rules_report import render_report, report_rules

__all__ = ["dataset", "look_up", "page", "render_report", "report_rules", "terminal"]
