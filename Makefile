# One command for each task; the first run sets up a virtual environment by itself.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SERVABLE := $(VENV)/.servable
NATIVE := $(shell find native -type f -not -name '*.pyc' 2>/dev/null)
SOURCES := $(filter %.h %.c %.cpp,$(NATIVE))
INCLUDE := "import sysconfig; print(sysconfig.get_path('include'))"
MODULES := $(wildcard native/*/module.cpp native/gate/bindings/*.cpp native/gate/simulation/*.cpp)
GATE := $(wildcard native/gate/*/*.c)
FUZZERS := $(wildcard native/fuzz/*.cpp)
TIDY = xargs -P 2 -n 1 sh -c '$(BIN)/clang-tidy --quiet $$0 -- -std=c++20 -I native -I native/gate \
	-isystem $(shell $(BIN)/python -m nanobind --include_dir) -I $(shell $(BIN)/python -c $(INCLUDE)) 2> /dev/null'

# Tests start many processes: what one has compiled, the next need not, nor what nobody imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup serve demo test test-thorough fuzz native-here test-gpu bench-gpu lint lint-fuzz format stubs hooks docs docs-serve bench reproduce clean

setup: $(READY)

# What serving needs and no more: it installs in seconds.
$(SERVABLE): pyproject.toml $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q -e '.[serve,onnx]'
	touch $@

$(READY): pyproject.toml papers/pyproject.toml $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q --no-compile --config-settings=cmake.define.ASTRARIUM_TESTING=ON -e '.[dev]'
	$(BIN)/python -m pip install -q --no-compile -e papers
	touch $@ $(SERVABLE)

# The main job on an embedded default: emulated GPUs, two emulated models and two real ones. Ctrl-C drains it.
serve: $(SERVABLE)
	$(BIN)/astrarium serve examples/serve.yaml

demo: setup
	$(BIN)/astrarium compare examples/quickstart.yaml -p astrarium -p deferred -p eager --out runs/demo --overwrite

# Three files at a time, since many wait for processes; what files share, such as a compiled gate, is made for each.
test: setup lint
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# Real processes and a real Ray where `test` has a quicker look at the same, and the papers' tables and figures.
test-thorough: setup fuzz lint-fuzz
	$(BIN)/python -m pytest -n 3 --dist loadfile -m thorough
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not gpu' papers/tests

# Native code that reads bytes from outside, for so long each, and threads, with sanitizers on; by hand for hours.
FUZZ_SECONDS ?= 15
fuzz:
	$(PYTHON) native/fuzz/run.py --seconds $(FUZZ_SECONDS)

# On a machine with a GPU, with the Python and the torch that it has: native code is built beside the package,
# and nothing is installed. It needs cmake, ninja and nanobind.
native-here:
	cmake -S native -B build/here -G Ninja -DCMAKE_BUILD_TYPE=Release \
		-DASTRARIUM_TESTING=ON -DPython_EXECUTABLE=$(shell command -v $(PYTHON))
	cmake --build build/here
	install build/here/_*.so build/here/libastrarium_gate.so src/astrarium/  # new files: who runs keeps the old ones

test-gpu: native-here
	PYTHONPATH=src:$$PYTHONPATH $(PYTHON) -m pytest -m gpu --confcutdir=tests/gpu tests/gpu

bench-gpu: native-here
	PYTHONPATH=src:$$PYTHONPATH $(PYTHON) benchmarks/gpu/run.py --out benchmarks/results

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(SOURCES)
	printf '%s\n' $(MODULES) | $(TIDY)
	$(BIN)/clang-tidy --quiet $(GATE) -- -std=c11 -I native/gate 2> /dev/null
	$(BIN)/mypy

# clang-tidy for the fuzzers, which takes it too long for every `lint`.
lint-fuzz: setup
	printf '%s\n' $(FUZZERS) | $(TIDY)

# Writes Python and native code as `lint` wants it.
format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(SOURCES)

# What type checkers and editors know of native extensions, from their bindings; a test compares.
stubs: setup
	$(BIN)/python native/stubs.py

# Before each commit: ruff and clang-format on the files that change, and mypy. clang-tidy takes too long for that.
hooks: setup
	$(BIN)/pre-commit install

# The site of the documentation, in build/site. A warning, such as a link that leads nowhere, is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The same while it is written; 8000 is the port of `make serve`.
docs-serve: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8010

bench: setup
	$(BIN)/python benchmarks/run.py

reproduce: setup
	$(BIN)/astrarium reproduce all

clean:
	rm -rf build $(VENV) runs
