"""The masks of constrained tokens: the token ids that the policy server's grammar allowed.

vLLM samples a constrained token from softmax(logits / temperature) over the allowed ids. The
grammar of the call runs over the sampled ids here, and each position gets the mask that it had in
the server. With it, ratio, KL, entropy and gradient are those of the policy that was served.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import torch
import xgrammar
from numpy.typing import NDArray

from ltrain_train.learner.samples import flat_values
from ltrain_train.learner.weights import read_vocab_size
from ltrain_train.policy import Constraint

MASKED = -1e30
"""The logit of a forbidden id. It is finite, because an entropy multiplies it by probability 0."""
COMPILED_BYTES = 256 << 20
"""Memory for compiled grammars."""
BLOCK_ELEMENTS = 1 << 24
"""Logits that are masked at a time."""
BITS = 8


class Grammars:
    """Compiles the constraints of calls for one model."""

    def __init__(self, model: Path) -> None:
        from transformers import AutoTokenizer

        self.vocab_size = read_vocab_size(model)
        tokenizer = AutoTokenizer.from_pretrained(model)
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=self.vocab_size)
        self._compiler = xgrammar.GrammarCompiler(
            info, max_threads=2, cache_limit_bytes=COMPILED_BYTES
        )
        self.stop_token_ids = _end_tokens(model, tokenizer.eos_token_id)
        self._ids: dict[str, int] = tokenizer.get_vocab()

    def matcher(self, constraint: Constraint) -> xgrammar.GrammarMatcher:
        """Return a matcher at the beginning of an answer."""
        stops = sorted({*self.stop_token_ids, *constraint.stop_token_ids})
        return xgrammar.GrammarMatcher(
            self._compile(constraint), override_stop_tokens=stops or None
        )

    def find_start(self, constraint: Constraint, ids: list[int]) -> tuple[int, int] | None:
        """Return the positions of the first id of the grammar and of the first masked id.

        They differ if a tool call ends the model's reasoning. They are `len(ids)` if the reasoning
        does not end, and None if the tokenizer lacks the token that ends it.
        """
        if not constraint.reasoning_end:
            return 0, 0
        end, tool = map(self._ids.get, (constraint.reasoning_end, constraint.tool_start))
        if end is None:
            return None
        for position, token in enumerate(ids):
            if token in (end, tool):
                return position + (token == end), position + 1
        return len(ids), len(ids)

    def _compile(self, constraint: Constraint) -> xgrammar.CompiledGrammar:
        compiler, spec = self._compiler, constraint.spec
        match constraint.kind:
            case "json":
                return compiler.compile_json_schema(spec)
            case "regex":
                return compiler.compile_regex(spec)
            case "grammar":
                is_lark = constraint.is_lark
                return compiler.compile_lark(spec) if is_lark else compiler.compile_grammar(spec)
            case "structural_tag":
                return compiler.compile_structural_tag(spec)


def _end_tokens(model: Path, end: int | None) -> set[int]:
    """Return the ids that end an answer of a model in vLLM, whatever the request says."""
    path = model / "generation_config.json"
    found = json.loads(path.read_text()).get("eos_token_id") if path.exists() else None
    more = found if isinstance(found, list) else [found]
    return {token for token in (end, *more) if token is not None}


@lru_cache(maxsize=2)
def grammars(model: Path) -> Grammars:
    """Return the grammars of a model; its tokenizer is read once."""
    return Grammars(model)


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """The masks of T tokens of some rows."""

    of_token_T: NDArray[np.int64]
    """For each token the index of its mask, or -1: every id was allowed."""
    words_MW: torch.Tensor
    """The distinct masks, packed: bit j of word w is the id 32 w + j."""
    refused: list[int]
    """The positions of tokens that a grammar does not accept; later tokens of the call have no
    mask."""


def replay(
    model: Path,
    ids_T: NDArray[np.integer],
    constraint_T: NDArray[np.integer],
    starts_T: NDArray[np.integer],
    constraints: list[str],
) -> TokenMasks:
    """Run the grammars over the sampled ids.

    Args:
        model: the folder of the model, with its tokenizer.
        ids_T: the token ids of rows, one after the other.
        constraint_T: for each token the index of its call's constraint, or -1.
        starts_T: 1 at tokens with which a call begins.
        constraints: JSON of `Constraint`.
    """
    of_token = np.full(len(ids_T), -1, np.int64)
    distinct: dict[bytes, int] = {}
    refused: list[int] = []
    bounds = np.flatnonzero((np.diff(constraint_T, prepend=-1) != 0) | (starts_T != 0))
    for start, end in pairwise([*bounds.tolist(), len(ids_T)]):
        if constraint_T[start] < 0:
            continue
        constraint = Constraint.model_validate_json(constraints[constraint_T[start]])
        ids = ids_T[start:end].tolist()
        accepted = _replay_call(grammars(model), constraint, ids, distinct, of_token[start:end])
        if accepted < len(ids):
            refused.append(start + accepted)
    packed = np.array([np.frombuffer(mask, np.int32) for mask in distinct], np.int32, ndmin=2)
    return TokenMasks(of_token, torch.from_numpy(packed), refused)


def _replay_call(
    compiled: Grammars,
    constraint: Constraint,
    ids: list[int],
    distinct: dict[bytes, int],
    of_token: NDArray[np.int64],
) -> int:
    """Set the masks of one call's tokens, and return how many of them the grammar accepts."""
    found = compiled.find_start(constraint, ids)
    if found is None:
        return 0
    start, masked = found
    matcher = compiled.matcher(constraint)
    mask = xgrammar.allocate_token_bitmask(1, compiled.vocab_size)
    words = mask.numpy()
    for position in range(start, len(ids)):
        if matcher.is_terminated():  # vLLM samples from all ids after the grammar's end
            return len(ids)
        is_partial = position >= masked and matcher.fill_next_token_bitmask(mask)
        if not matcher.accept_token(ids[position]):
            return position
        if is_partial:
            of_token[position] = distinct.setdefault(words.tobytes(), len(distinct))
    return len(ids)


def apply_masks(logits_RV: torch.Tensor, mask_R: torch.Tensor, words_MW: torch.Tensor) -> None:
    """Set the logits of forbidden ids to `MASKED`, in place and a block of rows at a time.

    The gradient needs no further mask: the probability of these ids is 0.

    Args:
        logits_RV: of R distributions.
        mask_R: the index of the mask of each, or -1.
        words_MW: `TokenMasks.words_MW`.
    """
    vocab_size = logits_RV.shape[-1]
    masked = (mask_R >= 0).nonzero()[:, 0]
    if not len(masked):
        return
    octets = words_MW.view(torch.uint8)
    bits = torch.arange(BITS, dtype=torch.uint8, device=logits_RV.device)
    with torch.no_grad():
        for rows in torch.split(masked, max(1, BLOCK_ELEMENTS // vocab_size)):
            allowed = (octets[mask_R[rows]][:, :, None] >> bits) & 1
            forbidden = allowed.flatten(1)[:, :vocab_size] == 0
            logits_RV[rows] = logits_RV[rows].masked_fill_(forbidden, MASKED)


def call_constraints(
    rows: pl.DataFrame, in_response_T: NDArray[np.bool_], starts_T: NDArray[np.int64]
) -> tuple[NDArray[np.int64], list[str]]:
    """Return for each token the index of its constraint, or -1, and the constraints."""
    of_call = rows["call_constraints"].explode()
    constraints = of_call.drop_nulls().unique().sort().to_list()
    index = {constraint: number for number, constraint in enumerate(constraints)}
    codes = np.array([index.get(each, -1) for each in of_call.to_list()], np.int64)
    of_token = codes[starts_T.cumsum() - 1]
    sampled = np.zeros(len(in_response_T), bool)
    sampled[in_response_T] = flat_values(rows, "response_mask") > 0
    return np.where(sampled, of_token, -1), constraints
