"""ltrain's own call spans: the server's token ids, log-probabilities and policy version."""

from ltrain_instrument import attributes
from ltrain_transforms.dialects.partial import Dialect, Partial, Tokens, non_empty
from ltrain_transforms.traces import Role, Span

SCOPES = (attributes.SCOPE_GATEWAY, attributes.SCOPE_CAPTURE)


def _read(span: Span) -> Partial:
    """Return the fields of the `ltrain.*` attributes of the gateway and of captures."""
    if span.scope not in SCOPES:
        return {}
    guess = non_empty(
        guessed_agent=span.get(attributes.AGENT_NAME),
        delegated_by=span.get(attributes.DELEGATED_BY),
    )
    guess["agent"] = None
    if span.get("gen_ai.operation.name") == "execute_tool":  # the other fields are as gen_ai
        return guess | non_empty(untimed=span.flag(attributes.UNTIMED) or None)
    delivered = span.get(attributes.DELIVERED)
    fields = non_empty(
        kind="llm",
        measured=True,
        policy=span.get(attributes.POLICY_NAME),
        policy_version=span.integer(attributes.POLICY_VERSION),
        constrained=span.flag(attributes.CONSTRAINED) or None,
        constraint=span.get(attributes.CONSTRAINT),
        continued=span.integer(attributes.CONTINUED),
        not_continued=span.get(attributes.NOT_CONTINUED),
        tokens=_tokens(span),
    )
    fields |= guess if span.scope == attributes.SCOPE_GATEWAY else {}
    if delivered is not None:
        fields["delivered"] = span.flag(attributes.DELIVERED)
    return fields


def _tokens(span: Span) -> Tokens | None:
    prompt = span.get(attributes.PROMPT_TOKEN_IDS)
    response = span.get(attributes.RESPONSE_TOKEN_IDS)
    if prompt is None and response is None:
        return None
    return Tokens(
        prompt,
        response,
        span.get(attributes.RESPONSE_LOGPROBS),
        span.integer(attributes.PROMPT_TOKEN_COUNT),
        span.integer(attributes.RESPONSE_TOKEN_COUNT),
        span.span_id,
        attributes.PROMPT_TOKEN_IDS,
        _recorded_by(span),
    )


def _recorded_by(span: Span) -> str:
    """Return who recorded the token ids; only an attempt's key names a rollout on such a span."""
    if span.role != Role.GATEWAY:
        return "capture"
    keyed = span.get(attributes.ROLLOUT_ID) and span.get(attributes.MODE) != "prod"
    return "gateway" if keyed else "traffic"


DIALECT = Dialect(
    "gateway",
    (),
    _read,
    written_by="ltrain's gateway (from a trusted [sender](keys.md#senders)), "
    "captures of the distro",
    read_from="`ltrain.*` in the scopes `ltrain.gateway`, `ltrain.capture`",
    kinds="llm, tool",
    messages="as gen_ai",
    tokens="ids, log-probabilities, policy and version",
    missing="node",
)
