"""Supervised fine-tuning: the conversations of the best rollouts, as OpenAI's chat format.

A line is `{"messages": [...]}`, with `tools` where some were offered. Where a conversation has
several answers, those that the policy sampled have `weight` 1, the others 0.
"""

from ltrain_transforms.exports.chat import Message, chat
from ltrain_transforms.exports.conversations import Conversation
from ltrain_transforms.exports.converted import Converted, Line, Lines, line
from ltrain_transforms.exports.left_out import LeftOut
from ltrain_transforms.exports.rollouts import best, rollouts, talks
from ltrain_transforms.exports.work import Piece, Work, lineage


def sft(work: Work) -> Converted:
    """Give the conversations of the best rollouts."""
    found = best(rollouts(work.dataset), work.options)
    left_out, pieces = LeftOut(found), []
    for batch in work.batches():
        spoken = talks(batch, found, work.options.policy)
        left_out.talks(spoken)
        for execution, own in spoken.by_execution.items():
            rows = b"".join(line(_line(talk)) for talk in own)
            answers = [list(talk.answers.values()) for talk in own]
            pieces.append(Piece(execution, work.keep(rows), answers))
    pieces.sort()
    return Converted(Lines(work.each(pieces)), lineage(pieces), left_out.drops())


def _line(talk: Conversation) -> Line:
    messages = [
        _weighed(one, 1 if place in talk.answers else 0)
        for place, message in enumerate(talk.messages)
        for one in chat([message])
    ]
    answers = [one for one in messages if "weight" in one]
    if len(answers) == 1:
        del answers[0]["weight"]
    return {"messages": messages, **({"tools": talk.tools} if talk.tools else {})}


def _weighed(message: Message, weight: int) -> Message:
    return {**message, "weight": weight} if message["role"] == "assistant" else message
