"""Schedules: which task, which rollout and which group is next; no module here reads or writes."""

from ltrain_train.schedule.early_stop import EarlyStop
from ltrain_train.schedule.group_queue import GroupQueue
from ltrain_train.schedule.run_schedule import ModeTrial, StopRule
from ltrain_train.schedule.task_sampler import Refill, TaskSampler, check_domains
from ltrain_train.schedule.windowed_fifo import WindowedFifo

__all__ = [
    "EarlyStop",
    "GroupQueue",
    "ModeTrial",
    "Refill",
    "StopRule",
    "TaskSampler",
    "WindowedFifo",
    "check_domains",
]
