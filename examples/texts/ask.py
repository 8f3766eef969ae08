"""Asks with nothing but Python's own library."""

from __future__ import annotations

import json
import sys
from urllib.request import urlopen

TEAMS = "billing", "delivery", "support"
text = " ".join(sys.argv[1:])
call = {"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": [text]}]}
with urlopen("http://127.0.0.1:8000/v2/models/router/infer", json.dumps(call).encode()) as answer:
    [output] = json.load(answer)["outputs"]
chances = output["data"]
print(TEAMS[chances.index(max(chances))])
