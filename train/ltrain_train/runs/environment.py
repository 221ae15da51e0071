"""The environment of a run: its store, its gateway, the agent's processes and its own spans."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

from opentelemetry.sdk.trace import TracerProvider

from ltrain_collector.store import Store
from ltrain_train.gateway import GatewayClient
from ltrain_train.rollout import (
    AgentProgram,
    AttemptLog,
    Runner,
    RunnerEnvironment,
    check_leases,
    rollout_logs,
)
from ltrain_train.runs.journal import Journal
from ltrain_train.runs.services import Services
from ltrain_train.runs.waves import WaveRun
from ltrain_train.store import home_secret, open_service_provider
from ltrain_transforms.recipe import Recipe


class RunEnvironment(ExitStack):
    """Owns the services of a run, its runner and its clients; use it in a `with` block.

    What depends on them enters this stack, so that it ends before them.
    """

    def __init__(self, run: str, program: AgentProgram, services: Services) -> None:
        super().__init__()
        self.run, self.program = run, program
        self.services = self.enter_context(services)
        self.runner: Runner
        self._log: AttemptLog | None = None
        self.gateway: GatewayClient
        self.store: Store

    def check_leases(self, journal: Journal, trust: Sequence[str]) -> None:
        """Check that no runner on another machine has open attempts of the run.

        Raises:
            RunInUse: when one has.
        """
        self._log = log = AttemptLog(journal.folder)
        rename = "with source.run in the recipe"
        check_leases(self.services.store_url, self.run, log, rename=rename, trust=trust)

    def open(self, may_open: Callable[[], bool] = lambda: True) -> None:
        """Open the runner, the gateway's client and the store, when the services are ready.

        Args:
            may_open: returns whether the agent's processes may start before the gateway is ready.

        Raises:
            ChildDied: when a started service has ended.
            NotReachable: when a service is not ready in time.
        """
        services, has_agent = self.services, self.program.agent is not None
        place = RunnerEnvironment(
            run=self.run,
            home=services.home,
            gateway=services.gateway_url,
            secret=home_secret(services.home),
            policy=services.policies[0],
            keep_open=services.keep_open,
        )
        self.runner = services.open_runner(
            lambda: self.enter_context(Runner(self.program, place, self._log)),
            lambda: has_agent and may_open(),
        )
        client = GatewayClient(place.gateway, place.secret)
        self.gateway = self.enter_context(closing(client))
        self.store = self.enter_context(Store.open(services.store_url))

    def waves(self, recipe: Recipe, journal: Journal, train_samples: int) -> WaveRun:
        """Return the waves of the run; a task has `train_samples` rollouts in mode `train`."""
        logs = rollout_logs(self.services.home)
        return WaveRun(recipe, journal, self.store, self.runner, logs, train_samples)

    def open_provider(self, service: str) -> TracerProvider:
        """Return a provider of spans of this process, which ends with the environment."""
        provider = open_service_provider(service, self.services.home)
        self.callback(provider.shutdown)
        return provider
