"""A rollout, a run, a dataset or a policy as one self-contained HTML file.

Traces are not trusted. The templates escape every value. The Content-Security-Policy of the page
allows only its own style and script, by their digests, so injected markup cannot load or run
anything.
"""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ltrain_instrument.machine import visible
from ltrain_instrument.quantity import quantity
from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.reports import (
    Chart,
    Command,
    Facts,
    Graph,
    Grid,
    Histogram,
    Report,
    Share,
    Sibling,
    Spark,
    Tiles,
    format_cell,
)
from ltrain_transforms.show import credit, display_text
from ltrain_transforms.show.group import STEPS
from ltrain_transforms.show.pages import charts, headline
from ltrain_transforms.show.pages.call_facts import call_badges, call_facts, state_change
from ltrain_transforms.show.pages.call_window import CallMacros, CallName, call_window
from ltrain_transforms.show.pages.conversation import Conversation, is_plain
from ltrain_transforms.show.pages.excerpt import excerpt
from ltrain_transforms.show.tree import Attempt, RolloutTree, Row, TreeCall

DEEPEST = 8
"""Maximum levels of indentation; deeper calls are indented as much."""
MIN_BAR = 3
"""Minimum length of the bar of a call, in thousandths of the time line."""
FOLD_FROM = 600
"""A text with more characters is folded."""
MAX_HEADLINE = 200
"""Characters of the task in the heading of a page."""
MAX_NAME = 200
"""Characters of a name or a badge in the row of a call."""
MOST_DROPS = 200
"""Drops of spans without a call that a page lists."""


@dataclass(frozen=True, slots=True)
class CallParts:
    """The addresses of what a page requests while somebody reads it."""

    rows: str
    """The address of a block of rows, `…/rows?…`; parts of calls are beside it."""
    has_tokens: bool
    """Whether the tokens of trained calls can be requested."""
    has_siblings: bool = False
    """Whether the same call of other rollouts of the group can be requested."""

    def address(self, part: str, number: int, call: Row) -> str:
        """Return the address of a part of a call in the attempt with this number."""
        beside = self.rows.replace("/rows?", f"/{part}?")
        return f"{beside}&attempt={number}&call={call['seq']}"


def write_page(shown: RolloutTree | Report, file: Path) -> None:
    """Write the page to `file`.

    Raises:
        NothingToShow: when the file cannot be written.
    """
    try:
        file.write_text(render_page(shown), encoding="utf-8")
    except OSError as error:
        raise NothingToShow(
            f"The page cannot be written to {file}: {error.strerror}. Pass --html a file in an "
            "existing folder."
        ) from error


def render_page(shown: RolloutTree | Report) -> str:
    """Return the HTML of the page."""
    style, script = page_asset("page.css"), page_asset("page.js")
    allowed = f"style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:"
    return (
        page_templates()
        .get_template(template_name(shown))
        .render(
            shown=shown,
            layout="base.html.j2",
            href=no_page,
            style=Markup(style),
            script=Markup(script),
            chart_options=None,
            policy=f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'",
            **tree_values(),
        )
    )


def tree_values(
    *,
    wanted: CallName | None = None,
    parts: CallParts | None = None,
    form: Sequence[tuple[str, str]] = (),
    next: str | None = None,
    next_text: str = "",
    has_newer: bool = False,
    feedback: object = None,
    siblings: Sequence[Sibling] = (),
) -> dict[str, Any]:
    """Return the values of `rollout.html.j2`, beside those of every page.

    Args:
        wanted: the call that the page opens.
        parts: where the page requests rows, bodies and their parts; None: it has rows and bodies
            as data.
        form: name and value of the parameters of the page that a form for a call keeps.
        next: the address of the page with more of the same tree, if this one has not all.
        next_text: the text of the link to it.
        has_newer: whether the store has newer spans than the dataset that is shown.
        feedback: the forms of `feedback.html.j2`, a template of `ltrain ui`; None: no forms.
        siblings: the rollouts of its group.
    """
    tree = {"wanted": wanted, "parts": parts, "form": form, "has_newer": has_newer}
    more = {"next": next, "next_text": next_text, "siblings": siblings}
    return {**tree, **more, "feedback": feedback}


def render_rows(shown: RolloutTree, number: int, start: int, templates: Environment) -> str:
    """Return the HTML of a block of rows.

    Args:
        number: of the attempt on the page, from 1.
        start: the first position of the block.
    """
    return call_window(shown, shown.attempts[number - 1], number).rows(_macros(templates), start)


def render_body(
    shown: RolloutTree,
    number: int,
    position: int,
    templates: Environment,
    feedback: object = None,
    parts: CallParts | None = None,
) -> str:
    """Return the HTML of the body of a call.

    Args:
        number: of the attempt on the page, from 1.
        position: of the call in the tree.
        feedback: as in `tree_values`.
        parts: as in `tree_values`.
    """
    attempt = shown.attempts[number - 1]
    conversation, step = Conversation(attempt.steps), attempt.steps[position]
    return _macros(templates).body(attempt, step, number, conversation, feedback, parts)


def _macros(templates: Environment) -> CallMacros:
    return cast(CallMacros, templates.get_template("call.html.j2").module)


def no_page(_: object) -> None:
    """Return no address: a file has no links to other pages."""


def template_name(shown: RolloutTree | Report) -> str:
    """Return the template of a page.

    It needs `shown`; `layout`, the template of the frame; and `href`, which returns the address of
    the page of a reference, or None.
    """
    return "rollout.html.j2" if isinstance(shown, RolloutTree) else "report.html.j2"


@cache
def page_templates() -> Environment:
    """Return the templates, filters and functions of pages."""
    environment = Environment(
        loader=PackageLoader("ltrain_transforms.show.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "cell": format_cell,
        "quantity": quantity,
        "visible": visible,
        "shorten": display_text.shorten,
        "commands": commands,
    }
    environment.globals |= {
        "credit": credit,
        "words": display_text,
        "headline": headline.headline,
        "chips_of": headline.chips,
        "call_window": call_window,
        "excerpt": excerpt,
        "signed": display_text.format_signed,
        "draw_chart": charts.draw_chart,
        "draw_histogram": charts.draw_histogram,
        "draw_graph": charts.draw_graph,
        "is_histogram": lambda part: isinstance(part, Histogram),
        "is_graph": lambda part: isinstance(part, Graph),
        "is_command": lambda cell: isinstance(cell, Command),
        "smoothings": charts.SMOOTHINGS,
        "references": lambda cell: cell if isinstance(cell, tuple) else (cell,),
        "box": (charts.WIDTH, charts.HEIGHT),
        "margins": (charts.LEFT, charts.RIGHT, charts.TOP, charts.BOTTOM),
        "bar": bar,
        "call_badges": call_badges,
        "call_facts": call_facts,
        "state_change": state_change,
        "is_plain": is_plain,
        "compared": STEPS,
        "fold_from": FOLD_FROM,
        "name_length": MAX_NAME,
        "headline_length": MAX_HEADLINE,
        "most_drops": MOST_DROPS,
        "deepest": DEEPEST,
        "is_spark": lambda cell: isinstance(cell, Spark),
        "spark_points": charts.spark_points,
        "is_share": lambda cell: isinstance(cell, Share),
        "is_tiles": lambda part: isinstance(part, Tiles),
        "is_facts": lambda part: isinstance(part, Facts),
        "is_grid": lambda part: isinstance(part, Grid),
        "is_chart": lambda part: isinstance(part, Chart),
    }
    return environment


def commands(sentence: str) -> Markup:
    """Return a sentence of ltrain whose commands, between back quotes, are code."""
    parts = sentence.split("`")
    code = Markup("<code class='command'>{}</code>")
    return Markup("").join(
        code.format(part) if place % 2 else escape(part) for place, part in enumerate(parts)
    )


def page_asset(name: str) -> str:
    """Return the text of a style sheet or script in templates/."""
    return files("ltrain_transforms.show.pages").joinpath("templates", name).read_text("utf-8")


def _digest(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()


def bar(step: TreeCall, attempt: Attempt) -> tuple[int, int]:
    """Return the start and the length of a call, in thousandths of the attempt's time."""
    total = attempt.execution["wall"] or 1e-9
    begin = min(max(round(step.offset / total * 1000), 0), 1000 - MIN_BAR)
    return begin, min(max(round((step.seconds or 0) / total * 1000), MIN_BAR), 1000 - begin)
