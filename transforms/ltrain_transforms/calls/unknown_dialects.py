"""Spans that look like calls of a model or a tool, and that no dialect reads.

Such a span has an attribute of a model or a tool, and another one that a call has. Attributes of
OpenTelemetry's other conventions do not count: a queue has messages, too. If a dialect reads other
spans of the scope, its writer is known, and the span describes no call.
"""

import re
from dataclasses import dataclass

from ltrain_instrument.quantity import quantity
from ltrain_transforms.dialects import BY_PRECEDENCE
from ltrain_transforms.traces import Role, Span

COMMON = ("\nerror.type", "\nserver.address", "\nopik.", "\nlogfire.msg_template")
"""Beginnings of attributes of a dialect that spans of any kind have."""
KNOWN = "^(?:{})".format(
    "|".join(
        prefix.removeprefix("\n").replace(".", "[.]")
        for dialect in BY_PRECEDENCE
        for prefix in dialect.prefixes
        if prefix not in COMMON
    )
)
"""Attributes that a dialect reads. These patterns are of RE2, for Python and ClickHouse."""
OTHER = (
    "^(?:aws|client|cloud|code|container|db|enduser|error|event|exception|faas|file|graphql|host"
    "|http|k8s|log|ltrain|messaging|net|network|otel|peer|process|rpc|server|service|session"
    "|telemetry|thread|tls|url|user|user_agent)[.]"
)
"""Attributes that say nothing about a model."""
TELLING = (
    "(?:^|[._])(?i:llm|models?|prompts?|completions?|messages|tools?|tokens|token_?(?:count|usage))"
    "(?:[._A-Z]|$)"
)
"""Attributes of a call of a model or a tool."""
CONTENT = "(?i:input|output|request|response|usage|args|argument|result)s?$"
"""Attributes of many spans."""
KIND = "(?i:kind|type)$"
"""The attribute of a span's kind."""
KINDS = (
    *("llm", "chat", "chat_model", "completion", "generation", "model", "tool", "tool_call"),
    *("function", "function_call", "agent", "retriever", "retrieval", "embedding"),
)
"""Values of `KIND` of a call, in small letters."""
SHOWN_NAMES = 6
"""Attributes that a report names."""
PROBLEM = "no dialect reads {} of the scope {}"
"""The sentence on spans with these attributes by a writer."""
REMEDY = "declare how with [[source.dialect]] in the recipe (docs/dialects.md)"
NEWEST = 10_000
"""Spans that a list or a check searches: 1 s in a store of 800,000 spans."""


def unknown_attributes(span: Span) -> list[str]:
    """Return the attributes by which a span looks like a call; none if a dialect knows it."""
    if span.role != Role.AGENT or re.search(KNOWN, span.attribute_names, re.MULTILINE):
        return []
    own = [name for name in span.attributes if not re.match(OTHER, name)]
    telling = {name for name in own if re.search(TELLING, name) or _is_kind(span, name)}
    found = telling | {name for name in own if re.search(CONTENT, name)}
    return sorted(found) if telling and len(found) > 1 else []


def _is_kind(span: Span, name: str) -> bool:
    value = span.attributes[name] or ""
    return re.search(KIND, name) is not None and value.strip('"').lower() in KINDS


def writer_name(scope: str, version: str) -> str:
    """Return an instrumentation as sentences name it."""
    return f"'{scope}' {version}".rstrip()


@dataclass(frozen=True, slots=True)
class UnknownWriter:
    """A row of `unknown_spans`."""

    scope: str
    version: str
    spans: int
    names: str

    @property
    def problem(self) -> str:
        """The sentence on its spans, without what to do."""
        writer = writer_name(self.scope, self.version)
        return f"{PROBLEM.format(self.names, writer)}, in {quantity(self.spans, 'span')}"


def newest_spans(where: str = "true") -> str:
    """Return SQL for the newest spans under a condition, about `NEWEST`, for `unknown_spans`."""
    newest = f"SELECT Timestamp AS time FROM otel.spans WHERE {where} ORDER BY time DESC"
    return (
        "(SELECT ScopeName, ScopeVersion, SpanAttributes FROM otel.spans "
        f"WHERE {where} AND Timestamp >= (SELECT min(time) FROM ({newest} LIMIT {NEWEST})))"
    )


def unknown_spans(spans: str) -> str:
    """Return SQL for the spans of `unknown_attributes`: `scope`, `version`, `spans`, `names`.

    Args:
        spans: the SQL of a query that selects spans, or a table of them.
    """
    kinds = ", ".join(f"'{kind}'" for kind in KINDS)
    value = "lower(trim(BOTH '\"' FROM toString(SpanAttributes[name])))"
    # a program has few sets of names, so the patterns are matched with few texts
    sets = (
        "SELECT ScopeName AS scope, ScopeVersion AS version, mapKeys(SpanAttributes) AS every, "
        f"arrayFilter(name -> match(name, '{KIND}') AND {value} IN ({kinds}), every) AS kinds, "
        f"count() AS number FROM {spans} WHERE NOT startsWith(ScopeName, 'ltrain.') "
        "GROUP BY scope, version, every, kinds"
    )
    found = (
        f"SELECT *, arrayExists(name -> match(name, '{KNOWN}'), every) AS known, "
        f"arrayFilter(name -> NOT match(name, '{OTHER}'), every) AS own, "
        f"arrayFilter(name -> match(name, '{TELLING}') OR has(kinds, name), own) AS telling, "
        f"arrayDistinct(arrayConcat(telling, arrayFilter(name -> match(name, '{CONTENT}'), own))) "
        f"AS found, NOT known AND notEmpty(telling) AND length(found) > 1 AS unknown FROM ({sets})"
    )
    by_writer = (
        "SELECT scope, version, sumIf(number, unknown) AS spans, "
        "arraySort(groupUniqArrayArrayIf(found, unknown)) AS names, "
        f"max(max(known)) OVER (PARTITION BY scope) AS read FROM ({found}) GROUP BY scope, version"
    )
    return (
        f"SELECT scope, version, spans, arrayStringConcat(arraySlice(names, 1, {SHOWN_NAMES}), "
        f"', ') AS names FROM ({by_writer}) WHERE spans > 0 AND NOT read "
        "ORDER BY spans DESC, scope, version"
    )
