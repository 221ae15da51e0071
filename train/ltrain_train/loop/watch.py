"""`ltrain run --watch`: follows a store, and makes an update whenever enough executions have ended.

* An execution counts once its rewards had `watch.reward_window` seconds to arrive, and a group once
  all of its executions count. Each is trained on once: the ledgers of the versions know it.
* Of the watch only the figures for alarms are stored: a new start reads the last `watch.history`
  seconds again.
* Learners keep their models between updates. A store that is away is awaited.
* While a version is a candidate, or watched after its promotion, it is judged at each look and no
  update is made. After a version was taken back the learners start again from the current one.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from ltrain_collector.store import Store
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.quantity import quantity
from ltrain_train.errors import AlarmRaised, NotFinite, NothingToTrain
from ltrain_train.loop.policy_run import MAX_UNDONE
from ltrain_train.policy import Deployments, Policies
from ltrain_train.publishing import Look, TrialRule, prune_spans
from ltrain_train.runs import Plan, Progress, store_is_away
from ltrain_train.updates import (
    OfflineRun,
    TrainingInput,
    Updater,
    read_lineage,
    read_store,
    remove_datasets,
    train_on,
)
from ltrain_transforms.deployment_file import Deployment, Stage
from ltrain_transforms.source import Selection, count_ended, empty_selection, explain_query_errors

NANOSECONDS = 1_000_000_000
PRUNE_EVERY = 3600 * NANOSECONDS
"""Nanoseconds between two removals of old spans."""

_logger = logging.getLogger("ltrain.loop")


@dataclass(slots=True)
class Watcher:
    """Follows a store for the policies of a plan."""

    plan: Plan
    store: str | None
    """Its DSN; None: LTRAIN_STORE."""
    on_input: Callable[[TrainingInput], None]
    """Called with the training data of a policy."""
    on_update: Callable[[Plan, TrainingInput, OfflineRun], None]
    on_look: Callable[[str, Look], None]
    """Called with a policy and a decision on its candidate."""
    examine: Callable[[Plan, int], tuple[bool, str]]
    """Returns whether a version of a policy passes the gates, and the sentence on it."""
    progress: Progress
    updaters: Mapping[str, Updater] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    """The version of each policy whose weights its learner has. `current` may be another one: a
    gateway finishes the publication of a watch that was killed."""
    _trials: set[str] = field(default_factory=set)
    """The policies with a version whose trial may have ended since the look before."""
    _asked: set[str] = field(default_factory=set)
    """The trials of which a person was asked to promote the version."""
    _outdated: bool = False
    """Whether a learner has other weights than the current version."""
    _frozen: set[str] = field(default_factory=set)
    """The policies of which it was logged that they are frozen."""
    _counted_until: int | None = None
    """End of the executions that were counted, in ns since the epoch."""
    _looked: bool = False
    """Whether the store has answered."""
    _undone: Counter[str] = field(default_factory=Counter)
    """Updates in a row that were undone, by policy."""
    _raised: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    """The keys of the alarms of the latest update, by policy."""
    _pruned_at: int = 0
    """When old spans were removed last, in ns since the epoch."""
    _away: set[str] = field(default_factory=set)
    """The reasons that were logged since the store is away."""

    def run(self, updaters: Mapping[str, Updater], versions: dict[str, int]) -> None:
        """Look at the store every `watch.poll` seconds, until the learners are outdated.

        They are when a trial has ended with another current version than theirs.

        Args:
            updaters: of each policy.
            versions: the version of each policy whose weights its learner has.
        """
        self.updaters, self.versions, self._outdated = updaters, versions, False
        while not self._outdated:
            try:
                self.look()
                self._away.clear()
            except LtrainError as error:
                if not store_is_away(error):
                    raise
                self._log_away(str(error))
            time.sleep(self.plan.recipe.watch.poll)

    def look(self, now: int | None = None) -> bool:
        """Make an update of each policy if enough executions have ended; return whether it has.

        While a version is on trial it is judged instead.

        Args:
            now: time in ns since the epoch; None: the clock's.
        """
        watch = self.plan.recipe.watch
        until = (now or time.time_ns()) - int(watch.reward_window * NANOSECONDS)
        counted = self._counted_until
        begin = (counted or until) - int(watch.history * NANOSECONDS)
        since, source = self._since(begin), self.plan.recipe.source
        selection = Selection.of_source(source, since=since)
        self._admit()
        with Store.open(self.store, create=False) as store:
            self._prune(store, now or time.time_ns())
            if self._judge(store) or self._is_frozen():
                return False
            with explain_query_errors(store, source, selection):
                ended = count_ended(store, source, selection, counted or begin, until)
            self.progress.show(f"waiting: {ended} of {watch.executions} new executions have ended")
            if not ended and not self._looked:  # the recipe may select none
                reason = empty_selection(store, source, selection)
                _logger.warning("ltrain: no execution has ended yet. %s", reason)
            self._looked = True
            if ended < watch.executions:
                return False
            found = [
                sentence
                for name in self.plan.trained
                for sentence in self._update(self.plan.for_policy(name), store, since, until)
            ]
        self._counted_until = until
        if found:
            raise AlarmRaised(
                "The watch stopped, because train.stop_on names an alarm that an update raised: "
                f"{' '.join(found)}. The same command continues."
            )
        return True

    def _prune(self, store: Store, now: int) -> None:
        """Remove what is older than `watch.keep_days`, at most once an hour."""
        days = self.plan.recipe.watch.keep_days
        if days is None or now - self._pruned_at < PRUNE_EVERY:
            return
        self._pruned_at = now
        before = datetime.fromtimestamp(now / NANOSECONDS - days * 86_400, UTC)
        try:
            removed = prune_spans(store, self.plan.home, before)
        except LtrainError as error:
            if store_is_away(error):
                raise
            _logger.warning("ltrain: spans older than %g days stay in the store: %s", days, error)
        else:
            if removed:
                _logger.info("ltrain: removed %d spans older than %g days", removed, days)

    def _admit(self) -> None:
        """Examine the candidates that have not answered users yet."""
        for rule, candidate in self._candidates():
            if candidate.stage is Stage.CANDIDATE:
                self._trials.add(rule.policy)
                self.progress.show(f"examining v{candidate.version} of '{rule.policy}'")
                self._report(rule, candidate, rule.admit(candidate))

    def _judge(self, store: Store) -> bool:
        """Judge the versions on trial; return whether no update can be made now."""
        for rule, candidate in self._candidates():
            self._trials.add(rule.policy)
            self._report(rule, candidate, rule.look(candidate, store))
        if any(self._candidates()):
            return True
        policies, ended = Policies(self.plan.home), self._trials
        self._trials = set()
        self._outdated = any(policies.current(name) != self.versions[name] for name in ended)
        return self._outdated

    def _candidates(self) -> Iterator[tuple[TrialRule, Deployment]]:
        policies, author = Policies(self.plan.home), "ltrain run --watch"
        for name in self.plan.trained:
            candidate = Deployments(policies, name).candidate()
            if candidate is not None:
                plan = self.plan.for_policy(name)
                examine = partial(self.examine, plan)
                yield TrialRule(policies, name, plan.recipe.deploy, author, examine), candidate

    def _report(self, rule: TrialRule, candidate: Deployment, look: Look) -> None:
        """Report the finding of a look at a trial; a person is asked once."""
        self.progress.show(look.sentence)
        if look.asks and candidate.experiment in self._asked:
            return
        if look.asks:
            self._asked.add(candidate.experiment)
        if look.asks or look.moved is not None:
            self.on_look(rule.policy, look)
            rule.announce(candidate, look)

    def _is_frozen(self) -> bool:
        """Return whether a policy keeps its version until `ltrain policy unfreeze`."""
        policies = Policies(self.plan.home)
        frozen = [name for name in self.plan.trained if Deployments(policies, name).is_frozen]
        if set(frozen) - self._frozen:
            names = " and ".join(map(repr, frozen))
            _logger.warning("ltrain: no update is made while %s is frozen", names)
        self._frozen = set(frozen)
        return bool(frozen)

    def _since(self, time_ns: int) -> str:
        """Return the later one of a time and the recipe's `source.since`, as ISO 8601."""
        begin = datetime.fromtimestamp(time_ns / NANOSECONDS, UTC)
        source = self.plan.recipe.source.since
        if source is not None:
            own = datetime.fromisoformat(source)
            begin = max(begin, own if own.tzinfo else own.replace(tzinfo=UTC))
        return begin.isoformat()

    def _update(self, plan: Plan, store: Store, since: str, until: int) -> list[str]:
        """Train a policy, and return the new alarms of `train.stop_on`."""
        lineage = read_lineage(plan, self.versions[plan.policy])
        data = read_store(plan, store, lineage, beside=True, ended_before=until, since=since)
        self.on_input(data)
        if not data.report.rows:
            return []
        self.progress.show(f"training '{plan.policy}' on {quantity(data.report.rows, 'row')}")
        try:
            run = train_on(plan, data, self.updaters[plan.policy])
        except NothingToTrain as error:  # every call was rejected
            _logger.warning("ltrain: %s", error)
        except NotFinite as error:
            self._undone[plan.policy] += 1
            if self._undone[plan.policy] == MAX_UNDONE:
                raise
            _logger.warning("ltrain: %s", error)
        else:
            self._undone[plan.policy] = 0
            self.versions[plan.policy] = run.version
            if plan.recipe.deploy.share:
                self._trials.add(plan.policy)
            remove_datasets(plan, run.removed)
            self.on_update(plan, data, run)
            return self._new_alarms(plan, run)
        return []

    def _new_alarms(self, plan: Plan, run: OfflineRun) -> list[str]:
        """Return the alarms of `train.stop_on` that the policy's update before did not raise."""
        before = self._raised.get(plan.policy, set())
        self._raised[plan.policy] = {alarm.key for alarm in run.alarms}
        return [
            alarm.sentence
            for alarm in run.alarms
            if alarm.name in plan.train.stop_on and alarm.key not in before
        ]

    def _log_away(self, reason: str) -> None:
        if reason not in self._away:
            self._away.add(reason)
            _logger.warning("ltrain: waiting for the store: %s", reason)
