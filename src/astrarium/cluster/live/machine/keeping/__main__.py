"""`python -I -S keeping/__main__.py keep FOLDER` keeps a part of a run; other verbs are those of errands."""

import sys
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    verb, *words = sys.argv[1:]
    if verb == "keep":
        import_module("keeping.keeper").Keeper(Path(words[0])).keep()
    else:
        import_module("keeping.errands").run(verb, words)
