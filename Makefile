# `make demo` and `make test` need only Python 3.10 or newer; everything is installed into .venv.
PYTHON ?= python3
# The pins are for Python 3.11 to 3.13; `make CONSTRAIN= …` takes the ranges of pyproject.toml instead.
CONSTRAIN ?= -c constraints.txt
BIN := .venv/bin

.PHONY: help demo test test-slow check space clean
.DEFAULT_GOAL := help

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

# torch goes first and alone: it is large, and whichever build of it the machine offers is the one the rest must fit.
.venv/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install $(CONSTRAIN) torch==2.13.0
	$(BIN)/python -m pip install $(CONSTRAIN) -e '.[dev]'
	touch $@

demo: .venv/.installed ## Build a small family of models, compare them through a local hub, print the verdicts
	$(BIN)/mdir-hf demo

# One process per core and one thread per process: torch and BLAS crawl when they have more threads than cores.
test: .venv/.installed ## The tests, without the slow ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not slow' -n 2

test-slow: .venv/.installed ## The slow tests: truly trained models, large sparse files
	$(BIN)/python -m pytest -m slow

check: .venv/.installed ## Lint, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

space: ## The Gradio Space (not yet)
	@echo 'The Space is not part of this version; `make demo` shows the same comparison in a terminal.' >&2; exit 1

clean: ## Remove what the other targets made
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .trained-models demo-out build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
