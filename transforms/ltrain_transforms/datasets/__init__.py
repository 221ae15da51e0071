"""The build of a dataset in bounded memory: its files, its manifest and its workers."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.datasets import pipeline
    from ltrain_transforms.datasets.build import Progress, build, ignore_progress
    from ltrain_transforms.datasets.dataset import Dataset, DatasetBatch
    from ltrain_transforms.datasets.interrupt import interrupt_handler
    from ltrain_transforms.datasets.location import dataset_folder, list_datasets, list_manifests
    from ltrain_transforms.datasets.manifest import KEYS, MANIFEST, SCHEMA_VERSION, count_reasons
    from ltrain_transforms.datasets.pipeline import ParsedSpans, derive, parse_spans
    from ltrain_transforms.datasets.progress import show_progress
    from ltrain_transforms.datasets.selective_drops import alarm_messages, alarms_by_wave
    from ltrain_transforms.datasets.workers import open_workers

open_face(__name__)
