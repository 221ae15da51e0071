"""The treatment of each field of a request, declared once.

The gateway, `ltrain check` and `docs/requests.md` read the declaration. A converted API has rules
for its own fields; its other fields are those of a chat completion.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from ltrain_instrument.allow import Allow
from ltrain_train.gateway.apis.body import bad_request


class Treatment(StrEnum):
    IMPOSED = "imposed"
    """The value of the recipe, or a neutral value, replaces the agent's."""
    REPLAYED = "replayed"
    """The policy server masks token ids, and the learner applies the same masks."""
    CORRECTED = "corrected"
    """The field is removed and the call goes on."""
    PASSED_ON = "passed on"
    """The field changes neither which ids may be sampled nor how likely each is."""
    REFUSED = "refused"
    """The call gets status 400, unless the recipe allows the field."""


@dataclass(frozen=True, slots=True)
class FieldRule:
    """The treatment of some fields."""

    names: str
    """The fields, separated by spaces."""
    treatment: Treatment
    reason: str
    """Why, as the second half of a sentence about a field."""
    allow: Allow | None = None
    """The exception in a recipe by which mode `train` passes the fields on."""
    everywhere: bool = False
    """Whether the treatment is that of all modes, production included."""

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(self.names.split())


NEUTRAL_SAMPLING: dict[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Imposed on each parameter that an attempt's key does not set, if it sets any."""

PARTS = "messages.content"
"""Parts of a message that are not text: a rule of their own."""
TEXT_PARTS = frozenset({"text", "refusal", "thinking", "input_text", "output_text"})
"""Types of message parts that contain text."""

SERVER_RULES: tuple[FieldRule, ...] = (
    FieldRule(
        "temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty",
        Treatment.IMPOSED,
        "the learner needs the probabilities of a known sampling",
    ),
    FieldRule(
        "response_format structured_outputs tool_choice",
        Treatment.REPLAYED,
        "the server decodes by a grammar",
        Allow.CONSTRAINED,
    ),
    FieldRule(
        "tools parallel_tool_calls",
        Treatment.REPLAYED,
        "the server decodes strict tools, and one call at most, by a grammar",
    ),
    FieldRule("seed", Treatment.CORRECTED, "the rollouts of a group would sample the same answers"),
    FieldRule("include_reasoning", Treatment.CORRECTED, "the server would hide the token ids"),
    FieldRule("verbosity web_search_options", Treatment.CORRECTED, "only OpenAI's servers know it"),
    FieldRule(
        "request_id",
        Treatment.CORRECTED,
        "calls with the same id would be recorded as one",
        everywhere=True,
    ),
    FieldRule("model", Treatment.PASSED_ON, "it names the policy or another model"),
    FieldRule(
        "messages prompt documents reasoning_effort",
        Treatment.PASSED_ON,
        "the token ids of the prompt are recorded",
    ),
    FieldRule(
        "max_tokens max_completion_tokens stop length_penalty",
        Treatment.PASSED_ON,
        "the answer is cut after its tokens were sampled",
    ),
    FieldRule(
        "stream stream_options stream_interval logprobs top_logprobs "
        "return_token_ids return_tokens_as_token_ids include_stop_str_in_output "
        "skip_special_tokens spaces_between_special_tokens return_prompt_text "
        "return_token_offsets return_mm_kwargs mm_payload routed_experts_prompt_start",
        Treatment.PASSED_ON,
        "it changes the form of the response, not its tokens",
    ),
    FieldRule(
        "user metadata store service_tier safety_identifier prediction prompt_cache_key "
        "prompt_cache_options prompt_cache_retention moderation cache_salt session_id",
        Treatment.PASSED_ON,
        "it concerns accounts, checks, caches or speed, not the sampling",
    ),
    FieldRule("n", Treatment.REFUSED, "one call would have several answers", Allow.CHOICES),
    FieldRule(
        "logit_bias allowed_token_ids bad_words min_tokens logits_processors use_beam_search "
        "best_of thinking_token_budget watermarking vllm_xargs",
        Treatment.REFUSED,
        "the learner cannot apply what it does to the sampling",
        Allow.CONSTRAINED,
    ),
    FieldRule(
        "guided_json guided_regex guided_choice guided_grammar guided_decoding_backend "
        "guided_whitespace_pattern",
        Treatment.REFUSED,
        "vLLM 0.32 has structured_outputs in its place",
        Allow.CONSTRAINED,
    ),
    FieldRule(
        "chat_template chat_template_kwargs continue_final_message add_generation_prompt "
        "add_special_tokens echo suffix truncate_prompt_tokens truncation_side",
        Treatment.REFUSED,
        "the prompt, or the answer's beginning, would not be the policy's own",
        Allow.TEMPLATE,
    ),
    FieldRule(
        "stop_token_ids ignore_eos repetition_detection",
        Treatment.REFUSED,
        "the answer would not end where the policy ends it",
        Allow.STOPPING,
    ),
    FieldRule(
        "messages.content mm_processor_kwargs media_io_kwargs prompt_embeds",
        Treatment.REFUSED,
        "the prompt's token ids would not hold it",
        Allow.MULTIMODAL,
    ),
    FieldRule(
        "audio modalities", Treatment.REFUSED, "the policy answers with text", Allow.MULTIMODAL
    ),
    FieldRule(
        "functions function_call",
        Treatment.REFUSED,
        "vLLM 0.32 has tools and tool_choice in their place",
        Allow.EXTRA,
    ),
    FieldRule(
        "prompt_logprobs logprob_token_ids",
        Treatment.REFUSED,
        "other calls of the same batch would be slower or lose their alternatives",
        Allow.EXTRA,
    ),
    FieldRule(
        "priority",
        Treatment.REFUSED,
        "the call would overtake those of other rollouts",
        Allow.EXTRA,
    ),
    FieldRule(
        "kv_transfer_params ec_transfer_params",
        Treatment.REFUSED,
        "another server would have computed the prompt",
        Allow.EXTRA,
    ),
)
"""Fields of chat completions and completions: those of OpenAI and of vLLM 0.32."""

UNKNOWN = FieldRule("", Treatment.REFUSED, "what it does to the sampling is not known", Allow.EXTRA)
"""The treatment of a field that no rule names."""
WITHOUT_EFFECT = FieldRule("", Treatment.PASSED_ON, "this value has no effect")

NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "tool_choice": ("auto", "none"),
    "include_reasoning": (True,),
    "response_format": ({"type": "text"},),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "modalities": (["text"],),
    "logit_bias": ({},),
    "bad_words": ([],),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "best_of": (1,),
    "watermarking": (False,),
    "vllm_xargs": ({},),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "echo": (False,),
    "suffix": ("",),
    "stop_token_ids": ([],),
    "ignore_eos": (False,),
    "priority": (0,),
    "background": (False,),
    "generationConfig.candidateCount": (1,),
    "generationConfig.responseModalities": (["TEXT"],),
}
"""Values by which a field changes nothing, beside null."""

NOT_KEPT = "the gateway keeps nothing between two requests. Send the whole input"

COMPLETION_RULES = (
    FieldRule(
        "echo", Treatment.REFUSED, "the gateway returns the sampled text only", everywhere=True
    ),
)
"""Fields of completions that have another meaning in chat completions."""

RESPONSE_RULES = (
    FieldRule(
        "input instructions max_output_tokens text reasoning include top_logprobs",
        Treatment.PASSED_ON,
        "it becomes a field of the chat completion, which has its own treatment",
    ),
    FieldRule(
        "service_tier safety_identifier moderation access_programs prompt_cache_key "
        "prompt_cache_options prompt_cache_retention max_tool_calls image context_management "
        "truncation stream_options client_metadata",
        Treatment.PASSED_ON,
        "it concerns OpenAI's servers and has no effect",
    ),
    FieldRule(
        "store",
        Treatment.PASSED_ON,
        "with serve.responses_state, the gateway does not keep a response if it is false; else it "
        "has no effect",
    ),
    FieldRule(
        "previous_response_id",
        Treatment.REFUSED,
        "the gateway keeps no responses. Send the whole input, or set serve.responses_state "
        "(`ltrain serve --responses-state`)",
        everywhere=True,
    ),
    FieldRule(
        "conversation prompt background",
        Treatment.REFUSED,
        NOT_KEPT,
        everywhere=True,
    ),
    FieldRule(
        "n",
        Treatment.REFUSED,
        "a response has one answer. Send one request for each",
        everywhere=True,
    ),
)
"""Fields of OpenAI's responses that a chat completion does not have."""

MESSAGE_RULES = (
    FieldRule(
        "system stop_sequences output_config output_format",
        Treatment.PASSED_ON,
        "it becomes a field of the chat completion, which has its own treatment",
    ),
    FieldRule(
        "metadata thinking service_tier inference_geo cache_control speed context_management "
        "diagnostics user_profile_id workspace_id betas billing_policy fallbacks "
        "fallback_credit_token",
        Treatment.PASSED_ON,
        "it concerns Anthropic's servers and has no effect",
    ),
    FieldRule("container thread compaction", Treatment.REFUSED, NOT_KEPT, everywhere=True),
    FieldRule(
        "mcp_servers",
        Treatment.REFUSED,
        "only Anthropic's servers call them. Send the tools of the servers",
        everywhere=True,
    ),
    FieldRule(
        "n",
        Treatment.REFUSED,
        "a message has one answer. Send one request for each",
        everywhere=True,
    ),
)
"""Fields of Anthropic's messages that a chat completion does not have."""


GEMINI_RULES = (
    FieldRule(
        "contents systemInstruction toolConfig generationConfig "
        "generationConfig.temperature generationConfig.topP generationConfig.topK "
        "generationConfig.maxOutputTokens generationConfig.stopSequences "
        "generationConfig.presencePenalty generationConfig.frequencyPenalty generationConfig.seed "
        "generationConfig.responseMimeType generationConfig.responseSchema "
        "generationConfig.responseJsonSchema generationConfig.thinkingConfig",
        Treatment.PASSED_ON,
        "it becomes a field of the chat completion, which has its own treatment",
    ),
    FieldRule(
        "safetySettings labels serviceTier store generationConfig.mediaResolution "
        "generationConfig.enableEnhancedCivicAnswers generationConfig.speechConfig "
        "generationConfig.imageConfig generationConfig.audioTimestamp "
        "generationConfig.audioTranscriptionConfig",
        Treatment.PASSED_ON,
        "it concerns Google's servers and has no effect",
    ),
    FieldRule("cachedContent continuationToken", Treatment.REFUSED, NOT_KEPT, everywhere=True),
    FieldRule(
        "generationConfig.candidateCount n",
        Treatment.REFUSED,
        "a response has one candidate. Send one request for each",
        everywhere=True,
    ),
    FieldRule(
        "generationConfig.responseLogprobs generationConfig.logprobs",
        Treatment.REFUSED,
        "a candidate has no log-probabilities here. Use /v1/chat/completions",
        everywhere=True,
    ),
    FieldRule(
        "generationConfig.responseModalities",
        Treatment.REFUSED,
        "the policy answers with text",
        everywhere=True,
    ),
)
"""Fields of Gemini's requests that a chat completion does not have."""


def rules_by_field(rules: Iterable[FieldRule]) -> dict[str, FieldRule]:
    return {name: rule for rule in rules for name in rule.fields}


SERVER_FIELDS = rules_by_field(SERVER_RULES)


def find_rule(name: str, value: Any) -> FieldRule:
    """Return the treatment of a field of a chat completion or a completion with this value."""
    if not has_effect(name, value):
        return WITHOUT_EFFECT
    if name == "messages" and any(map(_is_multimodal, value)):
        return SERVER_FIELDS[PARTS]
    return SERVER_FIELDS.get(name, UNKNOWN)


def has_effect(name: str, value: Any) -> bool:
    """Return whether a field differs from its absence."""
    return value is not None and value not in NO_EFFECT.get(name, ())


def require_supported(body: Mapping[str, Any], rules: Mapping[str, FieldRule]) -> None:
    """Check that a request has no field that the gateway refuses in every mode.

    Raises:
        Refused: 400, with the reason.
    """
    for name, value in body.items():
        rule = rules.get(name, UNKNOWN)
        refused = rule.treatment is Treatment.REFUSED and rule.everywhere
        if refused and value and has_effect(name, value):
            raise bad_request(f"'{name}' is refused: {rule.reason}.")


def corrected_fields(body: Mapping[str, Any], *, everywhere: bool) -> Iterator[str]:
    """Yield the fields that are removed.

    Args:
        everywhere: only those that are removed in every mode.
    """
    for name, value in body.items():
        rule = find_rule(name, value)
        if rule.treatment is Treatment.CORRECTED and (rule.everywhere or not everywhere):
            yield name


def near_field(name: str) -> str:
    """Return the known field with a similar name as a question, or an empty text."""
    near = get_close_matches(name, SERVER_FIELDS, n=1)
    return f" (did you mean '{near[0]}'?)" if near else ""


def _is_multimodal(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(part.get("type") not in TEXT_PARTS for part in content)
