"""Spans that look like calls of a model or a tool, and that no dialect reads.

Such a span has an attribute of a model or a tool, and another one that a call has. Attributes of
OpenTelemetry's other conventions do not count: a queue has messages, too. If a dialect reads other
spans of the scope, its writer is known, and the span describes no call.
"""

import re

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


def unknown_spans(spans: str) -> str:
    """Return SQL for the spans of `unknown_attributes`: `scope`, `version`, `spans`, `names`.

    Args:
        spans: the SQL of a query that selects spans, or a table of them.
    """
    known = f"arrayExists(name -> match(name, '{KNOWN}'), mapKeys(SpanAttributes))"
    kinds = ", ".join(f"'{kind}'" for kind in KINDS)
    value = "lower(trim(BOTH '\"' FROM toString(SpanAttributes[name])))"
    return (
        "SELECT ScopeName AS scope, ScopeVersion AS version, count() AS spans, "
        "arrayStringConcat(arraySlice(arraySort(groupUniqArrayArray(found)), 1, "
        f"{SHOWN_NAMES}), ', ') AS names FROM (SELECT ScopeName, ScopeVersion, "
        f"arrayFilter(name -> NOT match(name, '{OTHER}'), mapKeys(SpanAttributes)) AS own, "
        f"arrayFilter(name -> match(name, '{TELLING}') OR (match(name, '{KIND}') AND {value} IN "
        f"({kinds})), own) AS telling, arrayDistinct(arrayConcat(telling, "
        f"arrayFilter(name -> match(name, '{CONTENT}'), own))) AS found FROM {spans} "
        f"WHERE NOT {known} AND ScopeName NOT IN (SELECT ScopeName FROM {spans} WHERE {known}) "
        "AND NOT startsWith(ScopeName, 'ltrain.') AND notEmpty(telling) AND length(found) > 1) "
        "GROUP BY scope, version ORDER BY spans DESC, scope, version"
    )
