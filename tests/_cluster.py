"""A Ray cluster of two nodes on this machine, as small as Ray lets it be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests import _seeds

ROOT = Path(__file__).parents[1]


class TwoNodes:
    """A head node for the driver and one actor, and a second node for one more.

    Attributes:
        address: that a driver connects to.
    """

    def __enter__(self) -> TwoNodes:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        # by default workers let all others go first
        os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (Ray spells it so)
        # workers import what is tested, wherever it was installed from
        self._path = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), self._path]))
        import ray
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(initialize_head=True, head_node_args=_SMALL)
        self.second = self.add_node()
        self.address = self._cluster.address
        # one connection for all tests of a module: each would take seconds
        ray.init(
            address=self.address, log_to_driver=False, logging_level="ERROR",
            # with another seed, workers have to draw what the driver draws
            runtime_env={"worker_process_setup_hook": "tests._seeds.shift_seeds"}
            if _seeds.NUMBER else None,
        )  # fmt: skip
        return self

    def add_node(self) -> Any:
        """One more node."""
        self.second = self._cluster.add_node(**_SMALL)
        return self.second

    def remove_node(self) -> None:
        """End the second node, as if its power were cut."""
        self._cluster.remove_node(self.second, allow_graceful=False)

    def __exit__(self, *raised: object) -> None:
        import ray

        ray.shutdown()
        self._cluster.shutdown()
        if self._path is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = self._path


_SMALL = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
