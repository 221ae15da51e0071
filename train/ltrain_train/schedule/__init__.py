"""Schedules: which task, which rollout and which group is next; no module here reads or writes."""

from ltrain_train.schedule.group_queue import GroupQueue
from ltrain_train.schedule.task_sampler import Refill, TaskSampler, check_domains

__all__ = ["GroupQueue", "Refill", "TaskSampler", "check_domains"]
