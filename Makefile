# Everything a developer does here. `make` alone lists the targets; each works on a machine with only
# Python 3.11 or newer and make. JOBS is the number of test processes, ARGS is passed on to pytest. Another Python gets a
# folder of its own: `make PYTHON=python3.13 VENV=.venv-313 test`.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

JOBS ?= 2
ARGS ?=
# What is drawn: of mutants, mutated files, programs, tests. The same seed draws the same.
SEED ?= 1
# The first Python that is new enough; `make PYTHON=/path/to/python …` overrides.
new_enough := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python; do \
	"$$python" -c '$(new_enough)' >/dev/null 2>&1 && echo "$$python" && break; done)

VENV ?= .venv
BIN := $(VENV)/bin
# What is installed into it: what the demo needs; with what the tests need; with the tools, too.
DEMO_INSTALLED := $(VENV)/.installed-all
TEST_INSTALLED := $(VENV)/.installed-test
INSTALLED := $(VENV)/.installed
TORCH_BIN := .venv-torch/bin
TORCH_INSTALLED := .venv-torch/.installed
CLIENTS_BIN := .venv-clients/bin
CLIENTS_INSTALLED := .venv-clients/.installed
GUIDED_INSTALLED := .venv-guided/.installed
PEERS_INSTALLED := .venv-peers/.installed
OLDER_ONNX := 1.16.2
OLDER_ONNX_INSTALLED := .onnx-$(OLDER_ONNX)/.installed

# $(call python_of,3.12): a Python of just this version, on PATH or where pyenv puts them; empty where there is none.
python_of = $(shell for python in python$(1) $(HOME)/.pyenv/versions/$(1).*/bin/python; do \
	"$$python" -c 'import sys, venv, ensurepip; sys.exit("%d.%d" % sys.version_info[:2] != "$(1)")' >/dev/null 2>&1 \
	&& echo "$$python" && break; done)
# The matrix of versions: for each row a Python, and what pip is told. Each has a folder .venv-matrix-ROW.
MATRIX := 0.9 0.10 0.11 0.12 lower
matrix_0.9 := 3.11 jax==0.9.2
matrix_0.10 := 3.12 jax==0.10.2
matrix_0.11 := 3.12 jax==0.11.2
matrix_0.12 := 3.13 jax==0.12.0.1
matrix_lower := 3.11 --constraint tests/matrix/lower-bounds.txt
# What `make test-newest` runs: what depends on JAX most, and every twenty-fifth case of each other test that has so many, but
# for the longest files; `make test-matrix-0.12` runs all.
NEWEST_TESTS := tests/architecture tests/blocks tests/frameworks tests/jaxprs tests/programs $(addprefix tests/codegen/test_rust_,names.py operators.py snapshots.py)
NEWEST_SAMPLED := tests/mox tests/export tests/testing
NEWEST_LEFT_OUT := --ignore=tests/export/sweeps $(addprefix --ignore=tests/export/rules/test_,linalg.py random.py windows.py)
NEWEST_INSTALLED := .venv-newest/.installed
# What `make test-runtimes` runs exported models in, beside the ONNX Runtime at hand. Each has a folder .venv-runtime-NAME;
# the old releases have wheels for old Pythons only.
RUNTIMES := 1.19 1.20 openvino genai
runtime_1.19 := onnxruntime==1.19.2
runtime_1.20 := onnxruntime==1.20.1
runtime_openvino := openvino==2026.4.1
runtime_genai := onnxruntime-genai==0.18.0
runtime_python = $(firstword $(call python_of,3.11) $(call python_of,3.12) $(PYTHON))
# Node, and with it onnxruntime-node and onnxruntime-web in a browser, where this machine has them.
NODE ?= $(shell command -v node)
BROWSER ?= $(and $(NODE),$(firstword $(shell command -v chromium chromium-browser google-chrome)))
SCRIPTS := tests/runtimes/javascript
SCRIPTS_INSTALLED := $(if $(NODE),$(SCRIPTS)/node_modules/.package-lock.json)
# JAX looks for accelerators first and warns when it finds none that it can use: tests compare on the CPU.
export JAX_PLATFORMS ?= cpu
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help env demo test quick test-all test-breadth test-attributes mutants fuzz-guided test-newest test-matrix test-slow test-real test-backend test-torch test-clients test-burn test-burn-sample test-stablehlo test-runtimes test-older-onnx fuzz sweeps bench bench-real bench-torch bench-graphs lint types docs format clean release-check

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(INSTALLED) ## create .venv with everything below

# $(call create_environment,FOLDER,REQUIREMENTS)
define create_environment
	$(call create_environment_of,$(PYTHON),3.11 or newer,$(1),$(2))
endef

# $(call create_environment_of,PYTHON,ITS VERSION,FOLDER,REQUIREMENTS)
define create_environment_of
	@test -n "$(1)" || { echo "jaxport needs Python $(2) with venv: install it, or say make PYTHON=…" >&2; exit 1; }
	$(1) -m venv $(3)
	$(3)/bin/python -m pip install --quiet --upgrade pip
	$(3)/bin/python -m pip install --quiet $(4)
	touch $(3)/.installed
endef

# These show the progress of pip: the first takes a minute or two on a machine that has none of the packages.
$(DEMO_INSTALLED): pyproject.toml
	@test -n "$(PYTHON)" || { echo "jaxport needs Python 3.11 or newer with venv: install it, or say make PYTHON=…" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --editable '.[all]'
	touch $@

$(TEST_INSTALLED): $(DEMO_INSTALLED)
	$(BIN)/python -m pip install --editable '.[test]'
	touch $@

$(INSTALLED): $(TEST_INSTALLED)
	$(BIN)/python -m pip install --editable '.[dev]'
	touch $@

$(TORCH_INSTALLED): pyproject.toml tests/torch/requirements.txt
	$(call create_environment,.venv-torch,--editable '.[test]' --requirement tests/torch/requirements.txt)

$(CLIENTS_INSTALLED): pyproject.toml tests/clients/requirements.txt
	$(call create_environment,.venv-clients,--editable '.[test]' --requirement tests/clients/requirements.txt)

$(PEERS_INSTALLED): benchmarks/peers.txt
	$(call create_environment,.venv-peers,--requirement benchmarks/peers.txt)

demo: $(DEMO_INSTALLED) ## export a Flax ResNet-50, run it in ONNX Runtime, compare, import it back
	@$(BIN)/python -m examples.demo

# Of a test with four cases or more every second one, and of tests that take long (tests/long.txt) every third:
# `make test ARGS="--draw 1"` runs others, `--all-cases` all of them.
test: $(TEST_INSTALLED) ## all tests but those named below, every second case of tests with many, every third of those that take long
	@$(BIN)/python -m pytest -n $(JOBS) -q $(ARGS)

$(NEWEST_INSTALLED): pyproject.toml
	$(call create_environment_of,$(newest_python),3.12 or newer,$(@D),--editable '.[test]')

newest_python = $(firstword $(call python_of,3.13) $(call python_of,3.12))

test-newest: ## what depends on JAX most, with the newest Python here and the newest JAX, which may need a newer Python
	@if test -n "$(newest_python)"; then \
		$(MAKE) --no-print-directory $(NEWEST_INSTALLED) && \
		.venv-newest/bin/python -c 'import jax, sys; print("Python", sys.version.split()[0], "with jax", jax.__version__)' && \
		.venv-newest/bin/python -m pytest -n $(JOBS) -q $(NEWEST_TESTS) $(ARGS) && \
		.venv-newest/bin/python -m pytest -n $(JOBS) -q --every 25 $(NEWEST_SAMPLED) $(NEWEST_LEFT_OUT) $(ARGS); \
	else \
		echo "There is no Python newer than 3.11 on PATH or under ~/.pyenv/versions: the newest JAX was not tested."; \
	fi

.venv-matrix-%/.installed: pyproject.toml tests/matrix/lower-bounds.txt
	$(call create_environment_of,$(call python_of,$(firstword $(matrix_$*))),$(firstword $(matrix_$*)),$(@D),--editable '.[test]' $(wordlist 2,9,$(matrix_$*)))

test-matrix-%: .venv-matrix-%/.installed ## one row of the matrix: 0.9, 0.10, 0.11, 0.12 or lower
	@$(<D)/bin/python -c 'import jax, sys; print("Python", sys.version.split()[0], "with jax", jax.__version__)'
	@$(<D)/bin/python -m pytest -n $(JOBS) -q --all-cases $(ARGS)

.PRECIOUS: .venv-matrix-%/.installed

test-matrix: ## all tests with every supported release of JAX and with the lower bounds of all libraries
	@failed=; for row in $(MATRIX); do echo "== $$row"; $(MAKE) --no-print-directory test-matrix-$$row || failed="$$failed $$row"; done; \
	test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

quick: $(INSTALLED) ## the architecture, then the tests closest to what differs from main, within a minute or two
	@$(BIN)/python -m tests.quick --jobs $(JOBS) $(ARGS)

test-slow: $(INSTALLED) ## the cases that `make test` leaves out, gradients of models, random programs, benchmarks' own checks
	@$(BIN)/python -m pytest -n $(JOBS) -q -m slow --all-variants $(ARGS)

# What `make test` leaves out is never lost: this runs it, and the step of .ci/run draws from it.
test-all: $(INSTALLED) ## `make test` and `make test-slow`, with all variants of each case
	@$(BIN)/python -m pytest -n $(JOBS) -q -m "not real and not torch and not clients and not burn" --all-variants $(ARGS)

# In random order, for a limited time: `make test-breadth SEED=7 WITHIN=600`.
WITHIN ?= 180
test-breadth: $(INSTALLED) ## some of what `make test` leaves out, in random order (SEED), for up to WITHIN seconds
	@echo "make test-breadth SEED=$(SEED) WITHIN=$(WITHIN)"
	@$(BIN)/python -m pytest -n $(JOBS) -q -m slow --all-variants --draw $(SEED) --order $(SEED) --within $(WITHIN) \
		--ignore=tests/fuzzing --ignore=tests/importer/test_older_onnx.py --ignore=tests/importer/test_attributes.py $(ARGS)

test-attributes: $(INSTALLED) ## rare values of the attributes of every operator, in all versions and types, against other evaluators
	@$(BIN)/python -m pytest tests/importer/test_attributes.py -n $(JOBS) -q -m slow --all-variants $(ARGS)

# Values of every EVERY-th case, gradients of a quarter of these; with ARGS=--to-onnx ONNX Runtime, too.
EVERY ?= 1
test-stablehlo: $(INSTALLED) ## the cases of exports through compiled artifacts: values and gradients
	@$(BIN)/python -m pytest -p tests.stablehlo.round_trips tests/export/rules tests/export/sweeps tests/programs tests/frameworks \
		-n $(JOBS) -q --all-cases --every $(EVERY) $(ARGS)

test-real: $(INSTALLED) ## every example at its published size
	@$(BIN)/python -m pytest -q -m real $(ARGS)

test-backend: $(INSTALLED) ## the whole backend suite of ONNX, each case as a program
	@$(BIN)/python -m pytest -n $(JOBS) -q -m "" -k test_program tests/importer/test_backend.py $(ARGS)

test-torch: $(TORCH_INSTALLED) ## what needs PyTorch, in an environment of its own; writes the page of its models
	@$(TORCH_BIN)/python -m pytest tests/torch -n $(JOBS) -q -m torch $(ARGS)

test-clients: $(CLIENTS_INSTALLED) ## programs of third-party packages, in an environment of their own
	@$(CLIENTS_BIN)/python -m pytest tests/clients -n $(JOBS) -q -m clients $(ARGS)

test-burn: $(INSTALLED) ## printed crates for Burn, compiled and run: needs cargo (rustup) and the registry of crates
	@PATH="$$PATH:$$HOME/.cargo/bin" $(BIN)/python -m pytest tests/burn -q -rs -m burn $(ARGS)

# Without training, for which Burn is compiled once more, and with every twelfth example.
test-burn-sample: $(INSTALLED) ## a sample of that, in some ten minutes with everything to be compiled
	@PATH="$$PATH:$$HOME/.cargo/bin" $(BIN)/python -m pytest tests/burn -q -rs -m burn --every 12 \
		--ignore=tests/burn/test_training.py --ignore=tests/burn/test_page.py $(ARGS)

.venv-runtime-%/.installed: Makefile
	$(call create_environment_of,$(runtime_python),3.11 or 3.12,$(@D),$(runtime_$*))

$(SCRIPTS)/node_modules/.package-lock.json: $(SCRIPTS)/package-lock.json
	cd $(SCRIPTS) && npm ci --ignore-scripts --no-audit --no-fund --omit-lockfile-registry-resolved=true
	touch $@

test-runtimes: $(INSTALLED) $(RUNTIMES:%=.venv-runtime-%/.installed) $(SCRIPTS_INSTALLED) ## functions and examples for each target, in ONNX Runtime 1.19, 1.20, the one at hand, OpenVINO, onnxruntime-genai, Node and a browser
	@$(BIN)/python -m tests.runtimes newest=$(BIN)/python $(foreach name,$(RUNTIMES),$(name)=.venv-runtime-$(name)/bin/python) \
		node=$(NODE) web=$(BROWSER) webgpu=$(BROWSER)

# Its files are read, its code is not run: the wheel of any Python and platform does.
$(OLDER_ONNX_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-deps --only-binary=:all: --python-version 3.11 --target $(@D) onnx==$(OLDER_ONNX)
	touch $@

test-older-onnx: $(OLDER_ONNX_INSTALLED) ## the backend suite of an older release of onnx
	@$(BIN)/python -m pytest -n $(JOBS) -q -m slow tests/importer/test_older_onnx.py $(ARGS)

# Files and seed: `make fuzz FILES=500 SEED=7`. Each kind has as many.
FILES ?= 1000
fuzz: $(INSTALLED) ## mutated ONNX, Mox and StableHLO files and random programs of JAX, in worker processes with limits on time and memory
	@for kind in onnx json yson xml stablehlo operations programs; do $(BIN)/python -m tests.fuzzing $$kind $(SEED) $(FILES); done

$(GUIDED_INSTALLED): pyproject.toml tests/fuzzing/requirements.txt
	$(call create_environment_of,$(call python_of,3.11),3.11,$(@D),--editable '.[test]' --requirement tests/fuzzing/requirements.txt)

SECONDS_EACH ?= 720
fuzz-guided: $(GUIDED_INSTALLED) ## mutated files that look for new code in the loader, the printers and the formats of a Mox, for SECONDS_EACH
	@failed=; for kind in onnx printers json yson xml; do \
		$(<D)/bin/python -m tests.fuzzing.guided $$kind $(SECONDS_EACH) out/fuzz/corpus-$$kind || failed="$$failed $$kind"; done; \
	test -z "$$failed" || { echo "found something:$$failed" >&2; exit 1; }

mutants: $(INSTALLED) ## one change in each of many rules, operators, passes, fusions, edits and algebras, which a test has to notice
	@$(BIN)/python -m tests.mutants --seed $(SEED) --jobs $(JOBS) $(ARGS)

sweeps: $(INSTALLED) ## every function of JAX in every dtype, static and symbolic, jit, vmap, grad; writes its pages
	@$(BIN)/python -m scripts.coverage --jobs $(JOBS) $(ARGS)

bench: $(INSTALLED) $(PEERS_INSTALLED) ## the figures of the documentation, one after the other
	@for benchmark in start export memory "examples --measure" importer; do $(BIN)/python -m benchmarks.bench_$$benchmark; done

bench-real: $(INSTALLED) ## seconds and memory of a decoder of 1.1 billion parameters in each float type; 16 GB of memory are enough
	@$(BIN)/python -m benchmarks.bench_real $(ARGS)

bench-torch: $(TORCH_INSTALLED) ## the speed of imported models of PyTorch at their published sizes; writes its page
	@$(TORCH_BIN)/python -m benchmarks.bench_torch --write $(ARGS)

bench-graphs: $(TORCH_INSTALLED) ## exported models against PyTorch's exports of the same architectures; writes its page
	@$(TORCH_BIN)/python -m benchmarks.bench_graphs --write $(ARGS)

lint: $(INSTALLED) ## ruff: rules and layout
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(INSTALLED) ## let ruff mend what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# pyright says nothing until it is done.
types: $(INSTALLED) ## pyright, about a minute
	@echo "pyright is checking $$(find src examples -name '*.py' | wc -l) files: about a minute"
	@$(BIN)/pyright --pythonpath $(BIN)/python

release-check: $(INSTALLED) ## build the distributions, install them into empty environments on Python 3.11 and 3.13, run the README there
	@$(BIN)/python -m scripts.release_check

docs: $(INSTALLED) ## build the documentation strictly into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## remove what the targets made, the environments too
	rm -rf .venv .venv-* .onnx-* .burn build dist site out .pytest_cache .ruff_cache .hypothesis $(SCRIPTS)/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
