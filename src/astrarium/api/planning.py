"""How much a scenario's GPUs can serve, and where its models should go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astrarium.api.runs import simulate
from astrarium.api.scenarios import Source, as_scenario, decider, read
from astrarium.core.choice import as_choice
from astrarium.core.errors import InputError
from astrarium.core.level import Scenario
from astrarium.levels import level_of
from astrarium.run.report import columns
from astrarium.run.results import Run
from astrarium.run.rows import Table
from astrarium.run.shown import Shown

if TYPE_CHECKING:
    from astrarium.serving.goodput import Goodput as SearchResult
    from astrarium.serving.planning.answer import PlanningAnswer

PICTURES = (".png",)


class Goodput(Shown):
    """A goodput is the highest rate of requests at which every model has 99 % of them answered in time."""

    def __init__(self, result: SearchResult, policy: str, scenario: Scenario) -> None:
        self.result = result
        self.policy = policy
        self.scenario = scenario

    @property
    def rate(self) -> float:
        """Requests per second: the mean over the seeds."""
        return self.result.goodput

    @property
    def promised(self) -> float:
        """What a server can promise: the rate, or less where its path of calls was measured to carry less."""
        return self.result.promised

    @property
    def interval(self) -> tuple[float, float]:
        """The smallest and the largest rate of the seeds."""
        return self.result.interval

    @property
    def per_seed(self) -> dict[int, float]:
        """The rate found with each seed."""
        return dict(zip(self.result.seeds, self.result.per_seed, strict=True))

    @property
    def capacity(self) -> float:
        """The rate if every GPU always ran the largest batches that the objectives allow."""
        return self.result.capacity

    @cached_property
    def probes(self) -> Table:
        """One row for each run of the search: rate, seed, the worst model's misses, whether it passed."""
        names = ("rate", "seed", "worst_bad", "passed")
        return Table(
            {name: [getattr(probe, name) for probe in self.result.probes] for name in names}, "probes"
        )

    @cached_property
    def run(self) -> Run:
        """A run at the rate that was found with the scenario's own seed."""
        rate = self.result.per_seed[0]
        scenario = _serving(self.scenario)
        return simulate(scenario.with_rate(rate) if rate > 0 else scenario)

    def plot(self, path: str | Path) -> Path:
        """Draw the search, as a .png file."""
        from astrarium.serving.report.goodput import draw_probes

        draw_probes(self.result, _picture(path))
        return Path(path)

    def __repr__(self) -> str:
        return f"<goodput of {self.policy}: {self.rate:,.0f} requests/s>"

    def _tables(self) -> list[Any]:
        from astrarium.serving.report.goodput import goodput_table

        return [goodput_table(self.policy, self.result)]


class Plan(Shown):
    """A plan says which models live on which GPUs, and what that is worth."""

    def __init__(self, answer: PlanningAnswer) -> None:
        self.answer = answer

    @property
    def gpus(self) -> int | None:
        """The GPUs that the plan uses; None where there is no plan."""
        return None if self.answer.chosen is None else self.answer.chosen.gpus

    @property
    def met(self) -> bool:
        """Whether every model gets what it should."""
        return self.answer.chosen is not None and self.answer.chosen.met

    @property
    def attainment(self) -> float | None:
        """The part of all requests that is answered in time."""
        chosen = self.answer.chosen
        return None if chosen is None or chosen.judged is None else chosen.judged.overall.mean

    @cached_property
    def placement(self) -> Table:
        """One row for each replica: GPU, model, batch, share of the GPU, and why it is there."""
        uses = () if self.answer.chosen is None else self.answer.chosen.uses
        models = [model.name for model in self.answer.chosen.problem.models] if self.answer.chosen else []
        placed = [(use.gpu.id, replica_use.replica) for use in uses for replica_use in use.replicas]
        rows = [(gpu, models[one.model], one.batch, one.share, one.why) for gpu, one in placed]
        return Table(columns(("gpu", "model", "batch", "share", "why"), rows), "replicas")

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain data: what `astrarium plan --json` prints."""
        from astrarium.serving.planning.plain import plain_answer

        return plain_answer(self.answer)

    def save(self, path: str | Path) -> Path:
        """Write the plan as YAML or JSON, by the file's ending; `astrarium simulate --plan` runs it."""
        from astrarium.serving.planning import plans

        if Path(path).suffix not in plans.ENDINGS:
            raise InputError("path", str(path), f"a name that ends in {', '.join(plans.ENDINGS)}")
        chosen = self._chosen()
        plans.save(Path(path), chosen.plan, chosen.problem)
        return Path(path)

    def plot(self, path: str | Path) -> Path:
        """Draw which models live on which GPUs, as a .png file."""
        from astrarium.serving.planning.picture import draw_placement

        chosen = self._chosen()
        names = [model.name for model in chosen.problem.models]
        title = f"{self.answer.choice.label} on {chosen.gpus} GPUs"
        draw_placement(chosen.uses, names, _picture(path), title)
        return Path(path)

    def __repr__(self) -> str:
        verdict = "enough" if self.met else "not enough"
        return f"<plan of {self.answer.choice.label}: {self.gpus} GPUs, {verdict}>"

    def _chosen(self) -> Any:
        if self.answer.chosen is None:
            raise InputError("plan", None, "a plan: the search was interrupted before there was one")
        return self.answer.chosen

    def _tables(self) -> list[Any]:
        from astrarium.serving.planning.tables import shown

        return shown(self.answer)


def goodput(
    scenario: Source,
    policy: Any = None,
    seeds: int = 3,
    tolerance: float = 0.002,
    jobs: int = 1,
    progress: bool = True,
) -> Goodput:
    """Find the highest rate at which every model of a serving scenario has 99 % of its requests in time.

    *policy* is a name, a spec or a registered class, the scenario's own unless given. The rate is searched
    for with so many *seeds*, each until it is known to the share *tolerance*; *jobs* of them at a time.
    """
    from astrarium.run.waiting import waiting
    from astrarium.serving.goodput import search

    serving = _serving(as_scenario(scenario))
    who = decider(level_of(serving), serving, policy)
    if who.policy is not None:
        expected = (
            "a registered policy: the search makes it anew for each of many runs (docs/adding-a-policy.md)"
        )
        raise InputError("policy", who.label, expected)
    with waiting(f"searching for the goodput of {who.label}") if progress else nullcontext():
        return Goodput(search(_serving(who.scenario), seeds, tolerance, None, jobs), who.label, who.scenario)


def plan(
    scenario: Source,
    gpus: int | None = None,
    policy: Any = "planner",
    against: Iterable[Any] = (),
    target: float = 0.99,
    seeds: int = 3,
    most: int = 512,
    interference: str = "none",
    growth: bool = True,
    each: bool | None = None,
) -> Plan:
    """Plan where models go: on so many *gpus*, or on the fewest that are enough.

    *policy* places, and those of *against* are compared with it: names, specs or mappings. *target* is the
    part of every model's requests that must be in time, on *seeds* draws of requests; *most* GPUs are tried.
    *interference* is how replicas that share a GPU slow each other: "none", "igniter" or a file. *growth*:
    say what breaks first if load grows, and of *each* model alone. Ctrl-C keeps the best plan so far.
    """
    from astrarium.run.waiting import waiting
    from astrarium.serving.planning.answer import Question, answered
    from astrarium.serving.planning.known import interference_named
    from astrarium.serving.planning.search import PlanningGoals, PlanningWatch

    known, slowing = interference_named(interference)
    try:
        goals = PlanningGoals(target, seeds, most, known, slowing)
        question = Question(gpus, tuple(_placing(one) for one in against), growth, each)
        with waiting("planning"):
            return Plan(answered(_to_plan(scenario), _placing(policy), goals, question, PlanningWatch(None)))
    except InputError as error:
        field = error.field.removeprefix("-p ").lstrip("-")  # as a person wrote it on the command line
        raise InputError(field, error.value, error.expected, error.source) from None


def _serving(scenario: Any) -> Any:
    level = level_of(scenario)
    if level.name != "serving":
        raise InputError("scenario", level.subject, "a scenario of requests to models: others have no rate")
    return scenario


def _to_plan(source: Source) -> Any:
    """Return a scenario whose models need not fit all together on every GPU."""
    from astrarium.serving.scenario import parse

    if not isinstance(source, str | Path | Mapping):
        return _serving(source)
    raw, path = read(source)
    return parse(raw, "" if isinstance(source, Mapping) else str(path), path.parent, planning=True)


def _placing(policy: Any) -> Any:
    from astrarium.placement.policies import placement_policies

    choice = as_choice(policy, placement_policies, "planner")
    if choice is None:
        raise InputError("policy", policy, "a placement policy: a name, name:key=value or a mapping")
    return choice


def _picture(path: str | Path) -> Path:
    if Path(path).suffix not in PICTURES:
        raise InputError("path", str(path), "a name that ends in .png")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return Path(path)
