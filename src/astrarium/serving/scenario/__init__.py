"""One YAML file says which models, GPUs, policy and workload: here it is read, checked and written."""

from astrarium.serving.scenario.read import load, parse
from astrarium.serving.scenario.schema import Scenario

__all__ = ["Scenario", "load", "parse"]
