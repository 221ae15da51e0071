"""The APIs that clients use, each converted to one that the model's server answers."""

from ltrain_train.gateway.apis.api import Answer, Api, ClientCall
from ltrain_train.gateway.apis.completions import CHAT, COMPLETIONS
from ltrain_train.gateway.apis.messages import MESSAGES
from ltrain_train.gateway.apis.responses import RESPONSES

APIS: tuple[Api, ...] = (CHAT, RESPONSES, MESSAGES, COMPLETIONS)

__all__ = ["APIS", "Answer", "Api", "ClientCall"]
