"""The gateway's rules for the tools of requests, and its lines in the log about them."""

from collections.abc import Callable

from ltrain_instrument.allow import UnsupportedTools
from ltrain_train.gateway.apis import ClientCall
from ltrain_train.gateway.attempts import AttemptCalls


class ToolRules:
    """Refuses or reports the tools that the model's server cannot have."""

    def __init__(
        self,
        unsupported: UnsupportedTools = "drop",
        log: Callable[[str], None] = lambda line: None,
        check_template: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare the rules.

        Args:
            unsupported: the treatment of tools that only a provider's servers run.
            log: called with each line, once an attempt, and once for all of production.
            check_template: called before the first request to the policy that names tools.
        """
        self._unsupported, self._log, self._check_template = unsupported, log, check_template
        self._template_checked = self._production_warned = False

    def check_template(self) -> None:
        """Check once whether the model sees the tools of requests."""
        if not self._template_checked:
            self._template_checked = True
            self._check_template()

    def apply(self, call: ClientCall, attempt: AttemptCalls) -> None:
        """Report the tools that a call lacks.

        Raises:
            Refused: 400, when such tools are refused.
        """
        if call.omitted is None or not call.omitted.tools:
            return
        if self._unsupported == "refuse":
            raise call.omitted.refuse_tools()
        identity = attempt.identity
        is_production = identity.rollout is None
        if not (self._production_warned if is_production else attempt.tools_reported):
            caller = f"rollout {identity.rollout}, attempt {identity.attempt}"
            for sentence in call.omitted.sentences():
                self._log(f"{'production' if is_production else caller}: {sentence}")
        attempt.tools_reported = True
        self._production_warned |= is_production
