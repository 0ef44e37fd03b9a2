"""Policies that weigh more than arrival and priority: shortest job, fair share, deadline."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from hotseat.core.batch import Batch
from hotseat.core.config import SchedulerConfig, parse_tenant_weights
from hotseat.core.policy import Fcfs, Key, Policy, Priority
from hotseat.core.request import Request
from hotseat.errors import ConfigError

__all__ = ["BUILT_IN", "Deadline", "Fair", "Sjf", "policy_for"]

PROMPT_WEIGHT = 1.0  # service of a prompt token, and of an output token, as in the VTC paper
OUTPUT_WEIGHT = 2.0
RESUMES, IN_TIME, MISSED = 0.0, 1.0, math.inf  # of a deadline
SMOOTHING = 0.05  # weight of the newest observation in a running mean


class Sjf(Policy):
    """Shortest job first: prompt left and output expected. The expectation is the mean of those that ended.

    With ``aging_s`` a waiting request gains one level each such span; a level is half the work.
    """

    def __init__(self, aging_s: float | None = None) -> None:
        self._aging_s = aging_s
        self._mean_output = math.inf  # none ended yet: what a request asks for at most is the best guess
        self._num_ended = 0

    def key(self, request: Request, now: float) -> Key:
        asked = request.end_at - request.num_prompt_tokens
        left = max(1.0, min(asked, self._mean_output) - len(request.output_token_ids))
        level = math.log2(request.num_tokens + left)
        if self._aging_s is None:
            return (level, request.arrived_at)
        return (level + request.arrived_at / self._aging_s, request.arrived_at)

    def ended(self, request: Request) -> None:
        length = len(request.output_token_ids)
        if not length:
            return
        self._num_ended += 1
        if self._num_ended == 1:
            self._mean_output = length
        else:
            self._mean_output += max(SMOOTHING, 1 / self._num_ended) * (length - self._mean_output)


class Fair(Policy):
    """Fair share by virtual token counters (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024).

    A tenant's counter grows by the service it gets, prompt tokens and twice the output tokens, divided by its
    weight; the tenant with the smallest counter goes first. A tenant that comes back is lifted to the smallest counter
    of those that wait, or to the last that waited, so that service cannot be saved up. Two tenants that always wait
    differ by at most 2 · max(longest prompt, 2 · tokens in the KV cache).
    """

    def __init__(self, weights: dict[str, float] | None = None) -> None:
        self._weights = weights or {}
        self._counters: dict[str, float] = {}
        self._num_waiting: dict[str, int] = {}
        self._least: list[tuple[float, str]] = []  # of the waiting tenants; a number may be too small, never too large
        self._last = ""  # the tenant that waited last

    def group(self, request: Request) -> str:
        return request.tenant

    def group_key(self, group: str) -> float:
        return self._counters.get(group, 0.0)

    def joined(self, request: Request) -> None:
        tenant = request.tenant
        num_waiting = self._num_waiting.get(tenant, 0)
        self._num_waiting[tenant] = num_waiting + 1
        if num_waiting:
            return
        if request.admitted_at is None:  # one that was preempted did not come back, it never went
            self._counters[tenant] = max(self.group_key(tenant), self._least_counter(tenant))
        heapq.heappush(self._least, (self.group_key(tenant), tenant))
        self._tidy()

    def left(self, request: Request) -> None:
        tenant = request.tenant
        self._num_waiting[tenant] -= 1
        if not self._num_waiting[tenant]:
            del self._num_waiting[tenant]
            if not self._num_waiting:
                self._last = tenant

    def may_pass(self, short: Request, long: Request) -> bool:
        """Passing is service too: it is for tenants that have not had more than the one that is passed."""
        return self.group_key(short.tenant) <= self.group_key(long.tenant)

    def charge(self, request: Request, num_prefill_tokens: int, num_output_tokens: int) -> None:
        tenant = request.tenant
        service = PROMPT_WEIGHT * num_prefill_tokens + OUTPUT_WEIGHT * num_output_tokens
        self._counters[tenant] = self.group_key(tenant) + service / self._weights.get(tenant, 1.0)

    def _least_counter(self, newcomer: str) -> float:
        """Return the smallest counter of the tenants that waited before ``newcomer``, or the last one's."""
        least = self._least
        while least:
            counter, tenant = least[0]
            actual = self.group_key(tenant)
            if tenant not in self._num_waiting or tenant == newcomer:
                heapq.heappop(least)
            elif actual > counter:
                heapq.heapreplace(least, (actual, tenant))
            else:
                return counter
        return self.group_key(self._last)

    def _tidy(self) -> None:
        """Forget tenants that are gone, once they are the majority; coming back, they would be lifted anyway."""
        if max(len(self._counters), len(self._least)) > 2 * len(self._num_waiting) + 1024:
            least = min(map(self.group_key, self._num_waiting))
            self._counters = {
                tenant: counter
                for tenant, counter in self._counters.items()
                if tenant in self._num_waiting or tenant == self._last or counter > least
            }
            self._least = [(self.group_key(tenant), tenant) for tenant in self._num_waiting]
            heapq.heapify(self._least)


class Deadline(Policy):
    """Earliest deadline for the first token first, as long as the prefill can still make it; late ones last.

    With ``aging_s`` a late one is due again after such a span, so no request starves.
    """

    uses_deadline = True

    def __init__(self, default_deadline_s: float, aging_s: float | None = None) -> None:
        self._default_deadline_s = default_deadline_s
        self._aging_s = aging_s
        self._s_per_token = 0.0  # of a prefill

    def key(self, request: Request, now: float) -> Key:
        if request.first_token_at is not None:  # preempted: it has met its deadline, or not, already
            return (RESUMES, request.arrived_at)
        return self._key(request, now)

    def key_at_head(self, request: Request, now: float) -> Key:
        key = request.wait.key
        return self._key(request, now) if key[0] == IN_TIME and key[-1] != MISSED else key

    def stepped(self, batch: Batch, duration_s: float) -> None:
        num_prefill_tokens = batch.num_tokens - batch.num_decodes
        if num_prefill_tokens < max(1, batch.budget // 2):
            return  # says little about a step that is full
        s_per_token = duration_s / num_prefill_tokens
        weight = SMOOTHING if self._s_per_token else 1.0
        self._s_per_token += weight * (s_per_token - self._s_per_token)

    def _key(self, request: Request, now: float) -> Key:
        deadline_at = request.deadline_at
        if deadline_at is None:
            deadline_at = request.arrived_at + self._default_deadline_s
        if now + request.num_tokens * self._s_per_token <= deadline_at:
            return (IN_TIME, deadline_at)
        self.num_missed_deadlines += 1
        if self._aging_s is None:
            return (MISSED, request.arrived_at)
        return (IN_TIME, max(now, deadline_at) + self._aging_s, MISSED)


BUILT_IN: dict[str, Callable[[SchedulerConfig], Policy]] = {
    "fcfs": lambda config: Fcfs(),
    "priority": lambda config: Priority(config.aging_s),
    "sjf": lambda config: Sjf(config.aging_s),
    "fair": lambda config: Fair(parse_tenant_weights(config.tenant_weights)),
    "deadline": lambda config: Deadline(config.default_deadline_ms / 1000, config.aging_s),
}


def policy_for(config: SchedulerConfig) -> Policy:
    """Return the built-in policy that ``config`` names.

    Raises:
        ConfigError: there is none of that name.
    """
    make = BUILT_IN.get(config.scheduling_policy)
    if make is None:
        names = ", ".join(BUILT_IN)
        raise ConfigError(f"scheduling_policy must be {names} or module:Class, not {config.scheduling_policy!r}")
    return make(config)
