"""Ratings by people under one name: how many, how far two people agree, and where others differ."""

from dataclasses import dataclass

from ltrain_collector.admin import BY_PERSON, EVALUATED_UNIT_SQL, EVALUATION_NAME, counted_scores
from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_instrument.feedback import WITHDRAWN

CONFLICT = 0.5
"""The smallest difference between a rating and another score of the same name that is listed."""
MAX_CONFLICTS = 50
"""Conflicts that are listed: those with the largest difference."""

_BY_PERSON = f"""
    SELECT if(RolloutId != '', RolloutId, TraceId) AS unit,
        SpanAttributes['{attributes.USER_NAME}'] AS person,
        argMax(ifNull(toFloat64OrNull(EvaluationValue), inf), Timestamp) AS value
    FROM otel.spans
    WHERE {BY_PERSON} AND {EVALUATION_NAME} = {{name:String}} AND EvaluationScope != 'call'
        AND (toFloat64OrNull(EvaluationValue) IS NOT NULL OR EvaluationLabel = '{WITHDRAWN}')
    GROUP BY unit, person HAVING isFinite(value)
"""
"""The latest rating of each execution by each person; one that is withdrawn is not there."""
_PEOPLE = (
    f"SELECT person, toInt64(count()) AS rated FROM ({_BY_PERSON}) GROUP BY person ORDER BY person"
)
_PAIRS = f"""
WITH rated AS ({_BY_PERSON})
SELECT toInt64(count()) AS pairs, toInt64(countIf(one.value = other.value)) AS equal
FROM rated AS one JOIN rated AS other ON one.unit = other.unit
WHERE one.person < other.person
"""
_CONFLICTS = f"""
SELECT unit, any(rollout) != '' AS is_rollout, maxIf(score, source = 'person') AS rating,
    argMaxIf(score, moment, source != 'person') AS other,
    toString(argMaxIf(source, moment, source != 'person')) AS program
FROM (
    {counted_scores("name = {name:String}", f"{EVALUATED_UNIT_SQL} AS unit, rollout")}
)
GROUP BY unit
HAVING countIf(source = 'person') > 0 AND countIf(source != 'person') > 0
    AND abs(rating - other) >= {CONFLICT}
ORDER BY abs(rating - other) DESC, unit LIMIT {MAX_CONFLICTS}
"""


@dataclass(frozen=True, slots=True)
class Conflict:
    """An execution that people and a program rate differently."""

    unit: str
    is_rollout: bool
    """Whether the unit is a rollout; else it is a trace."""
    rating: float
    """The rating by a person that counts."""
    other: float
    source: str
    """The source of the other score: runner or agent."""


@dataclass(frozen=True, slots=True)
class Ratings:
    """The ratings under one name."""

    people: dict[str, int]
    """The executions that each person has rated."""
    pairs: int
    """Pairs of ratings of one execution by two people."""
    equal: int
    """Pairs of which both ratings are equal."""
    conflicts: list[Conflict]


def count_ratings(store: Store, name: str) -> dict[str, int]:
    """Return the number of executions that each person has rated under a name."""
    return dict(store.query(_PEOPLE, {"name": name}).iter_rows())


def read_ratings(store: Store, name: str) -> Ratings:
    """Return the ratings by people under a name."""
    parameters = {"name": name}
    [(pairs, equal)] = store.query(_PAIRS, parameters).rows()
    people = count_ratings(store, name)
    conflicts = store.query(_CONFLICTS, parameters).iter_rows()
    return Ratings(people, pairs, equal, [Conflict(*row) for row in conflicts])
