"""One YAML file says which models, GPUs, policy and workload: here it is read, checked and written."""

from astrarium.scenario.read import load, parse
from astrarium.scenario.schema import Scenario

__all__ = ["Scenario", "load", "parse"]
