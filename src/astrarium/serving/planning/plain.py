"""An answer as plain data, for `plan --json`."""

from __future__ import annotations

from typing import Any

import msgspec

from astrarium.placement.problem import Problem
from astrarium.serving.planning import plans
from astrarium.serving.planning.answer import PlanningAnswer
from astrarium.serving.planning.gpu_use import GpuUse
from astrarium.serving.planning.growth import Growth
from astrarium.serving.planning.mean_times import length_mixes
from astrarium.serving.planning.search import (
    Attempt,
)


def plain_answer(answer: PlanningAnswer) -> dict[str, Any]:
    chosen = answer.chosen
    plain: dict[str, Any] = {
        "policy": answer.choice.name,
        "parameters": answer.choice.parameters,
        "target": answer.goals.target,
        "seeds": answer.goals.seeds,
        "cluster": answer.scenario.cluster.size,
        "interrupted": answer.interrupted,
        "fewest": None if answer.fewest is None else answer.fewest.gpus,
        "tried": [_brief(attempt) for attempt in answer.attempts],
    }
    if chosen is not None:
        plain |= _chosen(answer, chosen)
    return plain


def _chosen(answer: PlanningAnswer, chosen: Attempt) -> dict[str, Any]:
    problem = chosen.problem
    return {
        "gpus": chosen.gpus,
        "met": chosen.met,
        "attainment": _attainment(chosen),
        "plan": plans.plain(chosen.plan, problem),
        "placement": [_gpu(use, problem) for use in chosen.uses],
        "lengths": msgspec.to_builtins(length_mixes(answer.scenario)),
        "growth": _growth(answer.growth, problem),
        "path": answer.path,
        "alone": {
            problem.models[at].name: _growth(model_growth, problem)
            for at, model_growth in answer.alone.items()
        },
        "against": [
            {
                "policy": rival.choice.name,
                "parameters": rival.choice.parameters,
                "attainment": _attainment(rival.same),
                "fewest": None if rival.fewest is None else rival.fewest.gpus,
            }
            for rival in answer.rivals
        ],
    }


def _brief(attempt: Attempt) -> dict[str, Any]:
    judged = attempt.judged
    assert judged is not None
    return {
        "gpus": attempt.gpus,
        "met": attempt.met,
        "worst": judged.models[judged.worst].mean,
        "worst_model": attempt.problem.models[judged.worst].name,
        "overall": judged.overall.mean,
    }


def _attainment(attempt: Attempt) -> dict[str, Any] | None:
    judged = attempt.judged
    if judged is None:
        return None
    names = (model.name for model in attempt.problem.models)
    models = {
        name: msgspec.to_builtins(attained) for name, attained in zip(names, judged.models, strict=True)
    }
    return {"overall": msgspec.to_builtins(judged.overall), "models": models}


def _gpu(use: GpuUse, problem: Problem) -> dict[str, Any]:
    return {
        "gpu": use.gpu.id,
        "kind": use.gpu.kind,
        "memory": use.gpu.memory,
        "used": use.memory,
        "busy": use.busy,
        "replicas": [
            {
                "model": problem.models[part.replica.model].name,
                "batch": part.replica.batch,
                "share": part.replica.share,
                "shape": str(part.replica.shape),
                "memory": part.memory,
                "busy": part.busy,
                "why": part.replica.why,
            }
            for part in use.replicas
        ],
    }


def _growth(growth: Growth | None, problem: Problem) -> dict[str, Any] | None:
    if growth is None:
        return None
    names = [model.name for model in problem.models]
    first = growth.first
    others = [names[place] for place in growth.others]
    named = {"first": None if first is None else names[first], "others": others}
    return {**msgspec.structs.asdict(growth), **named}
