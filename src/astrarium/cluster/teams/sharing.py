"""Teams share a cluster under any policy: each queue has a part of it, and the policy leases that part.

Every queue has its own copy of the policy, which sees the queue's GPUs as a cluster whose machines come and
go. At each decision teams claim GPUs (`claims`), a team divides its own among its queues, higher priorities
first, GPUs change queues (`moves`), and then the policies of those queues are asked for which something has
changed. GPUs that nobody wants stay where they are.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import NamedTuple

from astrarium.cluster import contract
from astrarium.cluster.auction.tally import AuctionTally, tally_of
from astrarium.cluster.contract import Event, Grant, Revoke, Withdraw
from astrarium.cluster.demand import usable, wanted
from astrarium.cluster.policies import Allocator, RankingAllocator
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.cluster.teams import Reservation, Rules, words
from astrarium.cluster.teams.claims import Claim, divided, largest_count, next_count, usable_counts
from astrarium.cluster.teams.holdings import Holdings, QueueKey
from astrarium.cluster.teams.moves import Moves
from astrarium.cluster.teams.usage import Accounts
from astrarium.cluster.teams.view import QueueView, changes
from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.quantities import FOREVER, Time

TIMER = "teams"
TOO_LONG = "max_run"


class CutLease(NamedTuple):
    """A lease as the policy granted it, which ends sooner because a reservation starts."""

    until: Time
    why: str


Actions = Iterator[Grant | Revoke | Withdraw | SetTimer]


class TeamSharing:
    """A policy for teams that share a cluster by rules; *fresh* is the policy that each queue has."""

    def __init__(self, fresh: Allocator, rules: Rules) -> None:
        self._fresh = fresh
        self.rules = rules
        self._policies: dict[QueueKey, Allocator] = {}
        self._holdings = Holdings()
        self._accounts = Accounts()
        self._cut: dict[int, CutLease] = {}  # by GPU
        self._ran: dict[int, Time] = {}  # how long apps that have a max_run held GPUs
        self._turn_ends: Time = 0

    @property
    def tally(self) -> AuctionTally | None:
        """Return how well the auctions of all queues were solved, if the policy holds any."""
        tallies = [tally for policy in (self._fresh, *self._policies.values()) if (tally := tally_of(policy))]
        if not tallies:
            return None
        totals = (sum(tally.auctions for tally in tallies), sum(tally.unsolved for tally in tallies))
        return AuctionTally(*totals, max(tally.largest_gap for tally in tallies))

    def decide(self, now: Time, events: Sequence[Event], state: ClusterState) -> Actions:
        self._pass_time(now)
        self._meet(now, state)
        before = {key: frozenset(gpus) for key, gpus in self._holdings.queues.items()}
        ended = [row for row in state.apps.values() if 0 < row.app.max_run <= self._ran[row.app.id]]
        for row in ended:
            yield Withdraw(row.app.id, words.too_long(row.app.max_run))
        self._holdings.meet(state)
        moves = self._moves(now, events, state)
        yield from moves.all()
        heard = yield from self._heard(now, events, state)
        for row in ended:
            key = self._holdings.keys[row.app.id]
            heard.setdefault(key, []).append(contract.AppWithdrawn(row.app.id, TOO_LONG))
        for key, gpus in self._holdings.queues.items():
            news = [*changes(before[key], gpus, state.floor), *heard.get(key, ())]
            if news:
                yield from self._asked(now, key, news, moves.claims, state)
        yield from self._remember(now, moves, state)

    def standing(self, now: Time, state: ClusterState) -> list[tuple[int, str]]:
        """Return who wants GPUs, team by team: the team that is served next first."""
        moves = self._moves(now, (), state)
        reasons = list[tuple[int, str]]()
        size = state.floor.size
        holdings = self._holdings
        held = {team: sum(len(row.leases) for row in self._rows(team, state)) for team in moves.claims}
        kept = {team: holdings.count(team) - held[team] for team in moves.claims}
        steps = {
            team: claim.next_step(held[team], size, size, self.rules.turn)
            for team, claim in moves.claims.items()
        }
        for team, claim in sorted(moves.claims.items(), key=lambda entry: steps[entry[0]] or (3,)):
            reason = words.waiting(claim, moves.claims, held, kept, size)
            for key in holdings.of(team):
                for app, own in self._standing(now, key, state):
                    first = f"priority {key.priority}" if len(holdings.of(team)) > 1 else ""
                    reasons.append((app, "; ".join(part for part in (reason, first, own) if part)))
        return reasons

    def _standing(self, now: Time, key: QueueKey, state: ClusterState) -> list[tuple[int, str]]:
        """Return who wants GPUs in a queue, as its policy tells it."""
        view = QueueView(state, self._holdings.rows(key, state), self._holdings.queues[key])
        policy = self._policies.get(key)
        if isinstance(policy, RankingAllocator):
            return list(policy.standing(now, view))
        return [(app, "") for app, row in view.apps.items() if wanted(row)]

    def _pass_time(self, now: Time) -> None:
        """Account for the time since the last decision, in which nothing changed hands."""
        for app in {tenure.app for tenure in self._holdings.tenures.values()} & self._ran.keys():
            self._ran[app] += now - self._accounts.at
        self._accounts.pass_time(now)

    def _meet(self, now: Time, state: ClusterState) -> None:
        """Note apps that are new, and make their queues; reserved GPUs have one even where no app is."""
        for app, row in state.apps.items():
            if app not in self._holdings.keys:
                self._holdings.enter(row.app, self.rules)
                if row.app.max_run:
                    self._ran[app] = 0
        for team in self.rules.reserved(now):
            if state.apps and not self._holdings.of(team):
                self._holdings.queues[QueueKey(team, 0)] = set()
        for key in self._holdings.queues:
            if key not in self._policies:
                self._policies[key] = deepcopy(self._fresh)

    def _rows(self, team: str, state: ClusterState) -> list[AppRow]:
        return [row for key in self._holdings.of(team) for row in self._holdings.rows(key, state).values()]

    def _moves(self, now: Time, events: Sequence[Event], state: ClusterState) -> Moves:
        """Return how the GPUs are divided now, and so who gets which."""
        holdings = self._holdings
        size = state.floor.size
        reserved = self.rules.reserved(now)
        teams = dict.fromkeys(key.team for key in holdings.queues)
        claims = {team: self._claim(now, team, reserved.get(team, 0), state) for team in teams}
        shares = divided(list(claims.values()), size, self.rules.turn)
        counts = {key: usable_counts(holdings.rows(key, state).values(), size) for key in holdings.queues}
        targets: dict[QueueKey, int] = {}
        for team in teams:
            left = shares[team]
            for key in holdings.of(team):
                targets[key] = largest_count(counts[key], left)
                left -= targets[key]
            targets[holdings.of(team)[0]] += left  # what is reserved and not used
        expired = [event for event in events if isinstance(event, contract.LeaseExpired)]
        there = (
            (gpu, state.apps[event.app]) for event in expired if event.app in state.apps for gpu in event.gpus
        )
        return Moves(now, self.rules, holdings, claims, targets, counts, dict(there), state)

    def _claim(self, now: Time, team: str, reserved: int, state: ClusterState) -> Claim:
        rows = self._rows(team, state)
        rule = self.rules.rule(team)
        account = self._accounts.of(team, self.rules)
        waiting = [(_gang(row), now - row.counted) for row in rows if not row.leases]
        return Claim(
            team=team,
            rule=rule,
            counts=usable_counts(rows, state.floor.size),
            reserved=reserved,
            gangs=tuple(gang for gang, waited in waiting if waited >= self.rules.turn),
            together=max((gang for gang, _ in waiting), default=0),
            within=account.within(rule.budget, self.rules.turn),
            used=0.0 if account.used is None else account.used.total,
            borrowed=account.borrowed.total,
            came=min((row.arrived for row in rows if wanted(row)), default=now),
        )

    def _heard(
        self, now: Time, events: Sequence[Event], state: ClusterState
    ) -> Generator[Grant, None, dict[QueueKey, list[Event]]]:
        """Renew leases that were cut for a reservation which did not need them, and return what each queue
        hears of the rest."""
        heard: dict[QueueKey, list[Event]] = {}
        for event in events:
            key: QueueKey | None = None
            if isinstance(event, contract.AppArrived):
                key = self._holdings.keys.get(event.app.id)
            elif isinstance(event, TimerFired):
                number, _, name = event.name.partition(":")
                known = name and number.isdigit() and int(number) < len(self._policies)
                key = list(self._policies)[int(number)] if known else None
                event = TimerFired(name)
            elif isinstance(event, contract.AppEvent):
                key = self._holdings.keys.get(event.app)
            if isinstance(event, contract.LeaseExpired) and key is not None:
                left = yield from self._renewed(now, event, key, state)
                event = contract.LeaseExpired(event.app, left, event.until)
                key = key if left else None
            if key is not None:
                heard.setdefault(key, []).append(event)
        return heard

    def _renewed(
        self, now: Time, event: contract.LeaseExpired, key: QueueKey, state: ClusterState
    ) -> Generator[Grant, None, tuple[int, ...]]:
        """Renew what was cut of a lease and is still the queue's, and return the GPUs of which it is over."""
        row = state.apps.get(event.app)
        again = dict[CutLease, list[int]]()
        for gpu in event.gpus:
            cut = self._cut.pop(gpu, None) if gpu in state.free else None
            if row is not None and cut is not None and gpu in self._holdings.queues[key]:
                again.setdefault(cut, []).append(gpu)
        for cut, gpus in again.items():
            assert row is not None
            yield self._granted(now, Grant(event.app, tuple(gpus), cut.until, cut.why), row, state)
        renewed = {gpu for gpus in again.values() for gpu in gpus}
        return tuple(gpu for gpu in event.gpus if gpu not in renewed)

    def _asked(
        self,
        now: Time,
        key: QueueKey,
        news: Sequence[Event],
        claims: Mapping[str, Claim],
        state: ClusterState,
    ) -> Iterator[Grant | Revoke | SetTimer | Withdraw]:
        """Ask the policy of a queue, and pass on what it may do."""
        number = list(self._policies).index(key)
        view = QueueView(state, self._holdings.rows(key, state), self._holdings.queues[key])
        for action in self._policies[key].decide(now, news, view):
            if isinstance(action, SetTimer):
                yield SetTimer(action.at, f"{number}:{action.name}")
                continue
            passed = self._passed(now, action, view, claims)
            if passed is not None:
                yield passed
                view.hear(passed)

    def _passed(
        self, now: Time, action: Grant | Revoke | Withdraw, view: QueueView, claims: Mapping[str, Claim]
    ) -> Grant | Revoke | Withdraw | None:
        """Return an action as it may be done. What has not run for its min_run stays where it is, and who
        was to have it waits."""
        row = view.apps.get(action.app)
        if row is None or isinstance(action, Withdraw):
            return action
        if isinstance(action, Revoke):
            kept = {gpu for gpu in action.gpus if self._protected(now, gpu, row)} - view.kept
            view.kept |= kept  # who asks for them again insists: they are of no use where they are
            gpus = tuple(gpu for gpu in action.gpus if gpu not in kept)
            return Revoke(action.app, gpus, action.why) if gpus else None
        gpus = tuple(gpu for gpu in action.gpus if gpu in view.free or gpu in row.leases)
        has = len(row.leases)
        if not gpus or (len(gpus) < len(action.gpus) and usable(row, has + len(gpus)) <= has):
            return None
        why = self._with_lender(action.why, row, len(gpus), claims, view.whole)
        return self._granted(now, Grant(action.app, gpus, action.until, why), row, view.whole)

    def _with_lender(
        self, why: str, row: AppRow, more: int, claims: Mapping[str, Claim], state: ClusterState
    ) -> str:
        """Return why an app is given GPUs, and that they are lent, if others are guaranteed some."""
        own = self.rules.team_of(row.app)
        if not any(team.guaranteed for name, team in self.rules.teams.items() if name != own):
            return why
        held = sum(len(other.leases) for other in self._rows(own, state))
        return words.lent(why, claims[own]) if held + more > claims[own].entitled else why

    def _protected(self, now: Time, gpu: int, row: AppRow) -> bool:
        tenure = self._holdings.tenures.get(gpu)
        if tenure is None or tenure.app != row.app.id or now - tenure.since >= row.app.min_run:
            return False
        return any(gpu in job.gpus and row.leases.keys() >= set(job.gpus) for job in row.jobs.values())

    def _granted(self, now: Time, grant: Grant, row: AppRow, state: ClusterState) -> Grant:
        """Return a grant that lasts for the app's min_run, and no longer than until a reservation starts that
        needs the GPUs."""
        until = grant.until
        why = grant.why
        if row.app.min_run:
            tenures = [self._holdings.tenures.get(gpu) for gpu in grant.gpus]
            began = (
                tenure.since if tenure is not None and tenure.app == grant.app else now for tenure in tenures
            )
            until = max(until, max(began) + row.app.min_run)
        for gpu in grant.gpus:
            self._cut.pop(gpu, None)
        next_one = self._in_the_way(now, grant, until, row, state)
        if next_one is not None:
            self._cut.update(dict.fromkeys(grant.gpus, CutLease(until, why)))
            until = next_one.next_start(now)
            why = words.until_reserved(why, next_one)
        return Grant(grant.app, grant.gpus, until, why)

    def _in_the_way(
        self, now: Time, grant: Grant, until: Time, row: AppRow, state: ClusterState
    ) -> Reservation | None:
        """Return the first reservation of another team that would find too few GPUs with this lease."""
        team = self.rules.team_of(row.app)
        for reservation in sorted(
            self.rules.reservations, key=lambda reservation: reservation.next_start(now)
        ):
            start = reservation.next_start(now)
            if reservation.team == team or start >= until:
                continue
            reserved = self.rules.reserved(start)
            available = state.floor.size - sum(count for other, count in reserved.items() if other != team)
            beyond = sum(
                end > start
                for other in state.apps.values()
                if self.rules.team_of(other.app) not in reserved
                for gpu, end in other.leases.items()
                if gpu not in grant.gpus
            )
            if beyond + len(grant.gpus) > available:
                return reservation
        return None

    def _remember(self, now: Time, moves: Moves, state: ClusterState) -> Iterator[SetTimer]:
        self._holdings.remember(now, state)
        self._cut = {gpu: cut for gpu, cut in self._cut.items() if gpu in state.holder}
        self._ran = {app: ran for app, ran in self._ran.items() if app in state.apps}
        for team, claim in moves.claims.items():
            account = self._accounts.of(team, self.rules)
            account.held = sum(len(row.leases) for row in self._rows(team, state))
            account.lent_to = max(0, account.held - claim.entitled)
        wakes = self._wakes(now, moves, state) if state.apps else FOREVER
        if wakes < FOREVER:
            yield SetTimer(wakes, TIMER)

    def _wakes(self, now: Time, moves: Moves, state: ClusterState) -> Time:
        """Return when something changes by time alone: turns, reservations, budgets, runs that are over."""
        instants = [self.rules.next_change(now), moves.next_chance()]
        turn = self.rules.turn
        size = state.floor.size
        holders = {tenure.team for tenure in self._holdings.tenures.values()}
        for team, claim in moves.claims.items():
            account = self._accounts.of(team, self.rules)
            step = next_count(claim.counts, 0)
            instants.append(account.next_change(now, claim.rule.budget, step, turn) if step else FOREVER)
            if holders - {team} and account.held < claim.wants(size):
                self._turn_ends = self._turn_ends if self._turn_ends > now else now + turn
                instants.append(self._turn_ends)
        for app, ran in self._ran.items():
            if state.apps[app].leases:
                instants.append(now + max(1, state.apps[app].app.max_run - ran))
        return min(instants)


def _gang(row: AppRow) -> int:
    """Return the fewest GPUs with which an app that has none would run."""
    return min(job.job.least for job in row.unfinished())
