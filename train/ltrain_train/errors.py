"""Errors that a user can fix: of a run, a policy, a dataset's rows and a checkpoint."""

from typing import TYPE_CHECKING

from ltrain_instrument.errors import LtrainError

if TYPE_CHECKING:
    from pydantic import ValidationError


class NotReachable(LtrainError, ConnectionError):
    """A store or a gateway does not answer."""


class NothingToTrain(LtrainError, LookupError):
    """A dataset has no row that the policy can be trained on."""


class NothingToScore(LtrainError, LookupError):
    """The store has no rollout of a run."""


class RolloutsFailed(LtrainError, RuntimeError):
    """Every rollout of a wave failed."""


class WaveMismatch(LtrainError, RuntimeError):
    """The dataset of a wave has other rollouts than its runner ran, or other outcomes of them."""


class SpansMissing(LtrainError, RuntimeError):
    """The store lacks the ends of rollouts that the runner has recorded."""


class CriticFailed(LtrainError, RuntimeError):
    """The critic model did not answer, or refused a request."""


class RunStopped(LtrainError, RuntimeError):
    """The rollouts of a run were stopped while another thread waited for them."""


class AlarmRaised(LtrainError, RuntimeError):
    """A training wave raised an alarm that the recipe stops on."""


class DiskFull(LtrainError, OSError):
    """The disk has no room for what a run must write."""


class DiskReadOnly(LtrainError, OSError):
    """The disk on which a run must write is read-only."""


class RunInUse(LtrainError, RuntimeError):
    """Another process works on the run or the policy."""


class ForeignStore(LtrainError, PermissionError):
    """The collector on this machine belongs to another home and refuses this home's keys."""


class BadRun(LtrainError, ValueError):
    """A run lacks something that it needs, such as tasks, an agent or a model."""


class BadDomains(LtrainError, ValueError):
    """The weights of domains do not fit the domains of the tasks."""


class BadSchedule(LtrainError, ValueError):
    """A schedule has a size that cannot work, or is used in the wrong order."""


class BadJournal(LtrainError, ValueError):
    """A run's journal cannot be read, for example because another version of ltrain wrote it."""


class BadModel(LtrainError, ValueError):
    """A directory has no complete model, or one that does not fit the policy."""


class UnknownVersion(LtrainError, LookupError):
    """The policy or the version does not exist."""


class DifferentBases(LtrainError, ValueError):
    """The versions of a comparison were trained from different base models."""


class WrongVersion(LtrainError, RuntimeError):
    """Another version than the evaluated one answered calls."""


class PolicyExists(LtrainError, FileExistsError):
    """The policy was registered before from another model."""


class FolderNotEmpty(LtrainError, FileExistsError):
    """A model cannot be exported to a folder that has files."""


class NoWorkers(LtrainError, RuntimeError):
    """No worker takes attempts from the gateway."""


class BadSamples(LtrainError, ValueError):
    """A samples file cannot be read, or has rows that an RL loss cannot use."""


class NotFinite(LtrainError, ArithmeticError):
    """Training gave weights or log-probabilities that are not finite numbers."""


class PolicyDrift(LtrainError, RuntimeError):
    """The server's log-probabilities are not those of the policy that is trained."""


class BadBase(LtrainError, ValueError):
    """A model directory lacks a file that training needs."""


class TooLittleMemory(LtrainError, MemoryError):
    """The machine has too little free memory for a model."""


class BadCheckpoint(LtrainError, ValueError):
    """A checkpoint is missing, incomplete, or of another model."""


class LearnerFailed(LtrainError, RuntimeError):
    """The learner raised an unexpected error; its log has the details."""


class LostRun(LearnerFailed):
    """A server of the Tinker API does not know a training run any more."""


def describe_fault(error: "ValidationError", whole: str = "") -> str:
    """Return the first fault of untrusted input: the field, or `whole` for all of it, and why."""
    fault = error.errors(include_url=False)[0]
    place = ".".join(map(str, fault["loc"])) or whole
    return f"{place}: {fault['msg']}" if place else fault["msg"]
