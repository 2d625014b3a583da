# Every target sets up what it needs first (.ci/setup.sh): Debian packages and a pinned virtual environment in .venv.
# The second call is instant.

SHELL := /bin/bash
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-fast lint bench cases clean

BIN := .venv/bin
# One thread per rank: eight ranks on a few cores otherwise fight over them.
export OMP_NUM_THREADS ?= 1

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | column -t -s $$'\t'

setup: ## the virtual environment and every Debian package that tests need
	@.ci/setup.sh compiler prometheus browser

demo: ## eight ranks (pp2 dp2 tp2 ep4) train on real text under ranksight; ends with the table of collectives
	@.ci/setup.sh compiler
	@PATH="$(CURDIR)/$(BIN):$$PATH" ranksight demo $(ARGS)

test: setup ## all tests
	@$(BIN)/python -m pytest --durations=10 $(ARGS)

test-fast: setup ## the tests that start no ranks, in seconds
	@$(BIN)/python -m pytest --durations=10 -m "not ranks and not slow" $(ARGS)

lint: ## ruff, mypy strict, import directions
	@.ci/setup.sh
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: ## what ranksight costs: per collective and per step
	@.ci/setup.sh compiler
	@PATH="$(CURDIR)/$(BIN):$$PATH" ranksight bench overhead $(ARGS)

cases: ## the acceptance cases in CASES=folder (a folder with run_cases.py) under ranksight
	@.ci/setup.sh compiler
	@test -f "$(CASES)/run_cases.py" || { echo "make cases CASES=folder: no run_cases.py in '$(CASES)'" >&2; exit 2; }
	@$(BIN)/python "$(CASES)/run_cases.py" --prefix "$(CURDIR)/$(BIN)/ranksight run --dir {dir} --" $(ARGS)

clean: ## removes what the targets made, the virtual environment too
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache runs
	find agent hooks dashboards trainer tests -name __pycache__ -prune -exec rm -rf {} +
