"""The learning curves of an example's runs as an SVG, which is a function of their results."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from statistics import median
from typing import Any

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 48, 150, 28, 40
"""Pixels between the picture's edge and the axes; the right side holds the legend."""
COLOURS = ("#2f6fde", "#d9822b", "#2a9d63", "#b4478f", "#7a6ad8", "#8a6d3b")
"""One for each line of the legend, readable on a white and on a dark page."""
GREY = "#888888"
TRAINING = "training, sampled"
"""The line of the scores of training waves, beside the held-out ones."""
TICKS = 4
"""Parts of the axis of scores."""

Point = tuple[int, float]
Curves = dict[tuple[str, str], list[list[Point]]]
"""By policy and domain: for each seed its points, the number of updates and the score."""


def draw_curves(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the SVG of the held-out and the training scores of an example's runs.

    Args:
        results: the contents of the example's `results/*.json`, one for each seed.
    """
    curves = _collect(results)
    updates = max(update for runs in curves.values() for run in runs for update, _ in run)
    seeds = ", ".join(str(each["seed"]) for each in results)
    title = f"{results[0]['example']}: score by updates, seed {seeds}"
    return _picture(title, [*_axes(max(updates, 1)), *_lines(curves, max(updates, 1))])


def draw_variants(
    title: str, curves: Mapping[str, Sequence[Sequence[Point]]], x_label: str = "updates"
) -> str:
    """Return the SVG of a score by updates: for each variant the median of its runs, and each run.

    Args:
        curves: the runs of each variant; those of a variant have the same updates.
        x_label: the unit in the place of updates.
    """
    drawn = {name: runs for name, runs in curves.items() if runs}
    updates = max(update for runs in drawn.values() for run in runs for update, _ in run)
    body = list(_axes(max(updates, 1), x_label))
    for number, (name, runs) in enumerate(drawn.items()):
        colour = COLOURS[number % len(COLOURS)]
        middle = [
            (points[0][0], median(score for _, score in points))
            for points in zip(*runs, strict=True)
        ]
        body += [_polyline(run, updates, colour, width=1, opacity=0.25) for run in runs]
        body += [_polyline(middle, updates, colour), *_legend(number, name, colour)]
    return _picture(title, body)


def _picture(title: str, body: Sequence[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'font-family="sans-serif" font-size="12" role="img" aria-label="{escape(title)}">',
            _text(LEFT, 16, title),
            *body,
            "</svg>\n",
        ]
    )


def _collect(results: Sequence[Mapping[str, Any]]) -> Curves:
    curves: Curves = {}
    for result in results:
        for policy, figures in result["policies"].items():
            validations = [wave for wave in figures["waves"] if wave["mode"] == "val"]
            for domain in validations[0]["score"]:
                points = [(wave["wave"], wave["score"][domain]) for wave in validations]
                curves.setdefault((policy, domain), []).append(points)
            training = [wave for wave in figures["waves"] if wave["mode"] == "train"]
            points = [(wave["wave"], wave["score"]["all"]) for wave in training]
            curves.setdefault((policy, TRAINING), []).append(points)
    return curves


def _axes(updates: int, x_label: str = "updates") -> Iterator[str]:
    for part in range(TICKS + 1):
        score = part / TICKS
        y = _y(score)
        yield (
            f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="{GREY}" '
            f'stroke-opacity="{0.8 if part == 0 else 0.25}"/>'
        )
        yield _text(LEFT - 6, y + 4, f"{score:.2f}", anchor="end")
    for update in sorted({0, updates // 2, updates}):
        yield _text(_x(update, updates), HEIGHT - BOTTOM + 18, str(update), anchor="middle")
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, x_label, anchor="middle")


def _lines(curves: Curves, updates: int) -> Iterator[str]:
    several = len({policy for policy, _ in curves}) > 1
    for number, ((policy, domain), runs) in enumerate(curves.items()):
        colour = GREY if domain == TRAINING else COLOURS[number % len(COLOURS)]
        for run in runs:
            yield _polyline(run, updates, colour)
            for update, score in run if domain != TRAINING else ():
                yield f'<circle cx="{_x(update, updates)}" cy="{_y(score)}" r="3" fill="{colour}"/>'
        yield from _legend(number, f"{policy} {domain}" if several else domain, colour)


def _polyline(
    run: Sequence[Point], updates: int, colour: str, *, width: int = 2, opacity: float = 1
) -> str:
    points = " ".join(f"{_x(update, updates)},{_y(score)}" for update, score in run)
    faint = f' stroke-opacity="{opacity:g}"' if opacity < 1 else ""
    return (
        f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"{faint}/>'
    )


def _legend(number: int, name: str, colour: str) -> Iterator[str]:
    x, y = WIDTH - RIGHT + 14, TOP + 14 + 18 * number
    yield f'<circle cx="{x}" cy="{y - 4}" r="4" fill="{colour}"/>'
    yield _text(x + 10, y, name)


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{GREY}" text-anchor="{anchor}">{escape(text)}</text>'


def _x(update: int, updates: int) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * update / updates, 1)


def _y(score: float) -> float:
    return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * score, 1)
