"""Schedules: which task, which rollout and which group is next; no module here reads or writes."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.schedule.early_stop import EarlyStop
    from ltrain_train.schedule.group_queue import GroupQueue
    from ltrain_train.schedule.run_schedule import ModeTrial, StopRule
    from ltrain_train.schedule.task_sampler import Refill, TaskSampler, check_domains
    from ltrain_train.schedule.windowed_fifo import WindowedFifo

open_face(__name__)
