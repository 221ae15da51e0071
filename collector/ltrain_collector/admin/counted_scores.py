"""SQL of the scores that count: the last one of each rollout or trace, name and source.

It is the rule of a dataset build (`ltrain_transforms.rewards`), over `otel.evaluations`:

- A score is a number of at most `MAX_SCORE`; other values and notes take no place.
- A later score or withdrawal of the same source takes the place of an earlier one.
- Scores of one moment that differ contradict each other: none of them counts.
- Only the runner and a person are sources of their own; all others are the agent.

Scores of calls are not read, because they judge a call and not the rollout around it.
"""

from ltrain_instrument.feedback import MAX_SCORE, WITHDRAWN

_MARK = "ifNull(value, inf)"
_LARGEST, _SMALLEST = (f"argMax({_MARK}, (judged, {sign}{_MARK}))" for sign in ("", "-"))
"""Of the marks of the last moment: a withdrawal is infinite."""
_PLACED = f"(abs(value) <= {MAX_SCORE} OR isNull(value) AND label = '{WITHDRAWN}')"

EVALUATED_UNIT_SQL = "if(rollout != '', rollout, trace)"
"""SQL expression on `otel.evaluations`: the judged rollout, else the judged trace."""


def counted_scores(where: str, by: str = "rollout, name") -> str:
    """Return a query of the scores that count: `by`, `source`, `score` and `moment`.

    It has `place` too, the greatest run, mode and wave that an evaluation names; feedback names no
    run.

    Args:
        where: SQL condition on `otel.evaluations` that keeps or drops all evaluations of a target.
        by: columns of the target, and `name` if `where` selects several names.
    """
    return f"""
    SELECT {by}, if(source = 'gateway', 'agent', source) AS source,
        if({_LARGEST} = {_SMALLEST}, {_LARGEST}, inf) AS score, max(judged) AS moment,
        max((toString(run), toString(mode), toInt64(wave))) AS place
    FROM otel.evaluations
    WHERE ({where}) AND scope != 'call' AND {_PLACED}
    GROUP BY {by}, source
    HAVING isFinite(score)"""
