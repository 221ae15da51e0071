"""A rollout, a run, a dataset or a policy as one HTML file that needs nothing else.

Traces are not trusted. The templates escape all that they are given; the page's policy
(Content-Security-Policy) lets nothing load and nothing run but its own style and script, which it
names by their digests, so that markup that got through would be dead.
"""

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ltrain_instrument.terminal import visible
from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.show import charts, credit, words
from ltrain_transforms.show.conversation import conversations, excerpt
from ltrain_transforms.show.report import Chart, Facts, Grid, Report, told
from ltrain_transforms.show.tree import Attempt, Step, Tree

DEEPEST = 8
"""Steps of indentation; what is deeper stands where the eighth does."""
NARROWEST = 3
"""Thousandths of the time line that the shortest call has."""
LONG = 600
"""Characters from which a text is folded."""


def write(shown: Tree | Report, file: Path) -> None:
    """Write the page.

    Raises:
        NothingToShow: when the file cannot be written.
    """
    try:
        file.write_text(page(shown), encoding="utf-8")
    except OSError as error:
        raise NothingToShow(
            f"The page cannot be written to {file}: {error.strerror}. Name a file in a folder "
            "that is there with --html."
        ) from error


def page(shown: Tree | Report) -> str:
    """Give the page's text."""
    name = "rollout" if isinstance(shown, Tree) else "report"
    style, script = _asset("page.css"), _asset("page.js")
    allowed = f"style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    return (
        _templates()
        .get_template(f"{name}.html.j2")
        .render(
            shown=shown,
            style=Markup(style),
            script=Markup(script),
            policy=f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'",
        )
    )


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("ltrain_transforms.show"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"told": told, "visible": visible, "short": words.short}
    made.globals |= {
        "credit": credit,
        "words": words,
        "conversations": conversations,
        "excerpt": excerpt,
        "drawing": charts.drawing,
        "box": (charts.WIDTH, charts.HEIGHT),
        "edges": (charts.LEFT, charts.RIGHT, charts.TOP, charts.BOTTOM),
        "bar": bar,
        "chips": chips,
        "long": LONG,
        "deepest": DEEPEST,
        "is_facts": lambda part: isinstance(part, Facts),
        "is_grid": lambda part: isinstance(part, Grid),
        "is_chart": lambda part: isinstance(part, Chart),
    }
    return made


def _asset(name: str) -> str:
    return files("ltrain_transforms.show").joinpath("templates", name).read_text("utf-8")


def _digest(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()


def bar(step: Step, attempt: Attempt) -> tuple[int, int]:
    """Give where in the attempt's time a call begins and how long it is, in thousandths."""
    total = attempt.execution["wall"] or 1e-9
    begin = min(max(round(step.offset / total * 1000), 0), 1000 - NARROWEST)
    return begin, min(max(round(step.seconds / total * 1000), NARROWEST), 1000 - begin)


def chips(step: Step) -> list[tuple[str, str]]:
    """Give what a folded call shows of itself, each with its class."""
    call = step.call
    found = [("bad", words.status(call))] if call["status"] == "error" else []
    if step.rewards:
        total = sum(reward.value for reward in step.rewards)
        found.append(("bad" if total < 0 else "good", f"reward {words.signed(total)}"))
    if step.credit is not None:
        found.append(("credit", f"advantage {words.signed(step.credit['advantage'])}"))
    if step.trained:
        found.append(("plain", f"trained {sum(one.tokens for one in step.trained):,}"))
    if step.wrote:
        found.append(("plain", f"wrote {', '.join(row['variable'] for row in step.wrote)}"))
    if doubt := credit.doubt(step):
        found.append(("warn", doubt))
    return found + [("warn", f"dropped: {row['reason']}") for row in step.drops]
