"""Sandboxes of attempts that are commands: their files, their network and their limits."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.sandboxes.bubblewrap import Bubblewrap
    from ltrain_train.sandboxes.isolated import run_isolated
    from ltrain_train.sandboxes.outbox import recover_spool
    from ltrain_train.sandboxes.room import Room
    from ltrain_train.sandboxes.sandboxes import Sandboxes, check_sandbox
    from ltrain_train.sandboxes.settings import BadWorkspace, SandboxSettings, SandboxUnavailable
    from ltrain_train.sandboxes.workspace import Changes, Workspace

open_face(__name__)
