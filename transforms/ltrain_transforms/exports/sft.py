"""Supervised fine-tuning: the conversations of the best rollouts, as OpenAI's chat format.

A line is `{"messages": [...]}`, with `tools` where some were offered. Where a conversation has
several answers, those that the policy sampled have `weight` 1, the others 0.
"""

from ltrain_transforms.dataset import Dataset
from ltrain_transforms.exports.chat import Message, chat
from ltrain_transforms.exports.conversations import Conversation
from ltrain_transforms.exports.converted import Converted, Line, Options
from ltrain_transforms.exports.rollouts import best, rollouts, talks


def sft(dataset: Dataset, options: Options) -> Converted:
    """Give the conversations of the best rollouts."""
    found = talks(dataset, best(rollouts(dataset), options), options.policy)
    lineage = [list(talk.answers.values()) for talk in found]
    return Converted([_line(talk) for talk in found], lineage, found.drops)


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
