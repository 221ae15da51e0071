"""Build a dataset on a Ray cluster of two nodes: `on_ray.py STORE RECIPE OUT SPANS_A_BATCH`.

It runs in its own process, since Ray warns, logs and keeps threads.
"""

import sys
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from ltrain_collector.store import Store
from ltrain_transforms.datasets.build import build
from ltrain_transforms.datasets.workers import open_workers
from ltrain_transforms.recipe import Recipe

cluster: Any = Cluster(
    initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
)
try:
    cluster.add_node(num_cpus=1)
    with Store.open(sys.argv[1]) as store, open_workers(0, ray=cluster.address) as ray_workers:
        build(
            store,
            Recipe.load(Path(sys.argv[2])),
            Path(sys.argv[3]),
            spans_a_batch=int(sys.argv[4]),
            workers=ray_workers,
        )
finally:
    cluster.shutdown()
