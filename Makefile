# The first `make demo`, `make lab` or `make test` creates an environment in .venv, which later ones use.
# Prerequisites: Linux, Python >= 3.10 (with venv), a C compiler, make; Node.js for the JupyterLab extension.

PYTHON ?= python3
DEVICE ?= sim
JOBS ?= $(shell nproc)
CHROMIUM ?= /usr/bin/chromium

VENV := .venv
BIN := $(VENV)/bin
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# jlpm, the labextension's scripts and `jupyter` find one another through PATH.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Bytecode is kept, because each of the thousand programs that the tests start would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
# IPython warns of another environment, such as one that the shell has activated.
unexport VIRTUAL_ENV

say = @printf '\n\033[1m== %s\033[0m\n' $(1)
C_FILES = $(shell find native -name '*.[ch]')

ifeq ($(filter $(DEVICE),sim gpu),)
$(error DEVICE must be sim (the simulated device) or gpu (the real one), not "$(DEVICE)")
endif

.PHONY: help env native labextension demo demo-cluster lab test nightly lint lint-python lint-types lint-c lint-typescript lint-prose jest pytest sanitize sanitize-short fuzz faults stress chaos ui pictures frameworks suites test-frameworks test-gpu format docs reference wheel clean distclean

help:
	@echo 'make demo [DEVICE=gpu]   three notebooks at the same time on one device; writes demo-report/'
	@echo 'make demo-cluster        four notebooks on two nodes of a Slurm on this machine (as root)'
	@echo 'make lab  [DEVICE=gpu]   JupyterLab with the shared-GPU kernel'
	@echo 'make test                everything, without a GPU: lint, TypeScript, Python and C tests, browser'
	@echo 'make nightly             all tests at full strength, sanitizers, fuzzing, kills, JupyterHub, `make suites` (hours, 6 GB)'
	@echo 'make test-frameworks     PyTorch and Numba on the simulated device (`make frameworks` downloads 1.1 GB)'
	@echo 'make suites              tests of CUDA for Python, Numba, PyTorch, Triton, CuPy and JAX for `make nightly` (6 GB)'
	@echo 'make test-gpu            the tests on a GPU; GPUSHARE_TEST_PYTHON names the Python with PyTorch, JAX, CuPy'
	@echo 'make sanitize | fuzz     the C parts under sanitizers | with random input (in `make test`: a short form of both)'
	@echo 'make faults              faults in virtual time: FAULTS=1e8 events, seeds from FIRST=0 on (hours)'
	@echo 'make stress              the ledger under eight threads with a million operations each (2 minutes)'
	@echo 'make chaos               200 kills of the coordinator, 500 kills and stops of programs (4 minutes); SEED=n'
	@echo 'make lint | format       check | fix the style of Python, C and TypeScript'
	@echo 'make jest | pytest | ui  one part of the tests (pytest gets ARGS="-k name", ui gets files)'
	@echo '                         JOBS=n: 2n tests of pytest at a time; JOBS=0: one at a time'
	@echo 'make pictures            the pictures of README and docs, from JupyterLab on the simulated device'
	@echo 'make docs                the documents as a site in docs/_build'
	@echo 'make reference           the generated documents: docs/reference/configuration.md and cli.md'
	@echo 'make env | native        only the environment | only the C parts, in place'
	@echo 'make wheel               an sdist and a wheel in dist/'
	@echo 'make clean | distclean   remove the built files | the environment and node_modules as well'
	@echo
	@echo 'DEVICE=sim (default) is a simulated device, DEVICE=gpu the real GPU. PYTHON=python3 creates the environment.'

# --- the environment ----------------------------------------------------------------------------------------

env: $(VENV)/.installed native $(VENV)/.labextension

# Installs the package with extras. SKIP_JUPYTER_BUILDER is set because the labextension has a rule of its own below,
# with visible progress and its own stamps.
comma := ,
define install
rm -rf $(VENV)/share/jupyter/labextensions/jupyter-gpushare $(VENV)/.labextension
SKIP_JUPYTER_BUILDER=1 $(BIN)/python -m pip install --progress-bar off -e '.[$(1)]' | grep -v '^Requirement already'
endef

$(VENV)/.installed: pyproject.toml hatch_build.py $(wildcard jupyter-config/*/* jupyter_gpushare/kernelspec/*/*)
	$(call say,'Python environment in $(VENV)')
	@$(PYTHON) -c 'import sys; sys.exit("Python >= 3.10 is needed, this is " + sys.version if sys.version_info < (3, 10) else 0)'
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(call install,demo$(comma)test)
	@touch $@

$(VENV)/.hub: $(VENV)/.installed
	$(call say,'JupyterHub and Ray')
	$(call install,demo$(comma)test$(comma)hub$(comma)ray)
	@touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(call say,'Sphinx')
	$(call install,docs)
	@touch $@

native: $(VENV)/.installed
	$(call say,'Native parts')
	@$(BIN)/python hatch_build.py

ifeq ($(shell command -v node),)
$(VENV)/.labextension: $(VENV)/.installed
	@printf '\n\033[1;33m== Node.js was not found: the JupyterLab extension is NOT built; all other parts work.\033[0m\n'
labextension/node_modules/.yarn-state.yml:
	@echo 'This target needs Node.js (>= 20), which was not found.' >&2; exit 1
else
labextension/node_modules/.yarn-state.yml: labextension/package.json labextension/yarn.lock | $(VENV)/.installed
	$(call say,'TypeScript packages')
	cd labextension && jlpm install --immutable | grep -v YN0013
	@touch $@

LABEXTENSION_SOURCES := $(shell find labextension/src labextension/style labextension/schema -type f 2>/dev/null)

jupyter_gpushare/labextension/package.json: labextension/node_modules/.yarn-state.yml labextension/tsconfig.json $(LABEXTENSION_SOURCES)
	$(call say,'JupyterLab extension')
	cd labextension && jlpm build:prod
	@touch $@

# Links the extension as `jupyter labextension develop` does, so that JupyterLab loads every later build.
$(VENV)/.labextension: jupyter_gpushare/labextension/package.json $(VENV)/.installed
	@mkdir -p $(VENV)/share/jupyter/labextensions
	@rm -rf $(VENV)/share/jupyter/labextensions/jupyter-gpushare
	ln -s "$(CURDIR)/jupyter_gpushare/labextension" $(VENV)/share/jupyter/labextensions/jupyter-gpushare
	@touch $@
endif

labextension: $(VENV)/.labextension

# --- use ----------------------------------------------------------------------------------------------------

demo: env
	$(call say,'Demo on the $(if $(filter gpu,$(DEVICE)),real GPU,SIMULATED device (DEVICE=gpu for the real one))')
	$(BIN)/jupyter-gpushare demo --device $(DEVICE)

demo-cluster: env
	$(call say,'Demo on two nodes of a Slurm on this machine (SIMULATED devices)')
	$(BIN)/jupyter-gpushare demo --slurm

lab: env
	$(call say,'JupyterLab on the $(if $(filter gpu,$(DEVICE)),real GPU,SIMULATED device (DEVICE=gpu for the real one))')
	$(BIN)/jupyter-lab $(if $(filter sim,$(DEVICE)),--GpuShare.simulate=True) $(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS)

# --- tests --------------------------------------------------------------------------------------------------

# All parts run even if one fails, and the exit status is not 0 then.
PARTS_OF_LINT := lint-python lint-types lint-c lint-typescript lint-prose

# Parts run at the same time, and the output of each part stays in one piece.
PARALLEL_PARTS := --jobs=$(or $(filter-out 0,$(JOBS)),1) --output-sync=target
# The browser tests mostly wait, so one more part than processors keeps all processors busy.
BEFORE_PYTEST := ui sanitize-short jest $(PARTS_OF_LINT)

test: env
	@status=0; \
	$(MAKE) --no-print-directory --keep-going --jobs=$(shell echo $$(($(JOBS) + 1))) --output-sync=target $(BEFORE_PYTEST) || status=$$?; \
	$(MAKE) --no-print-directory --keep-going --jobs=1 pytest || status=$$?; \
	exit $$status

# The nightly tier (tests/support/tier.py), with other examples each night.
NIGHTLY := --hypothesis-profile=default --timeout=3600

nightly: $(VENV)/.hub env
	@status=0; \
	$(MAKE) --no-print-directory --keep-going --jobs=1 $(PARTS_OF_LINT) docs jest ui sanitize || status=$$?; \
	$(MAKE) --no-print-directory pytest GPUSHARE_TEST_TIER=nightly ARGS='$(NIGHTLY)' || status=$$?; \
	$(MAKE) --no-print-directory suites || status=$$?; \
	$(MAKE) --no-print-directory test-frameworks GPUSHARE_TEST_TIER=nightly ARGS='$(NIGHTLY)' || status=$$?; \
	$(MAKE) --no-print-directory --keep-going --jobs=1 chaos fuzz stress || status=$$?; \
	exit $$status

lint: env
	@$(MAKE) --no-print-directory --keep-going $(PARALLEL_PARTS) $(PARTS_OF_LINT)

lint-python: env
	$(call say,'Lint: Python')
	$(BIN)/ruff check
	$(BIN)/ruff format --check

lint-types: env
	$(call say,'Lint: Python types')
	$(BIN)/mypy

lint-c: env
	$(call say,'Lint: C')
	$(BIN)/clang-format --dry-run --Werror $(C_FILES)
	$(BIN)/python hatch_build.py --check

lint-typescript: env labextension/node_modules/.yarn-state.yml
	$(call say,'Lint: TypeScript')
	cd labextension && jlpm lint

lint-prose: env
	$(call say,'Lint: text')
	$(BIN)/python -m tests.support.prose

jest: env labextension/node_modules/.yarn-state.yml
	$(call say,'Tests: TypeScript')
	cd labextension && jlpm test

ui: env labextension/node_modules/.yarn-state.yml
	$(call say,'Tests: JupyterLab in a browser')
ifeq ($(wildcard $(CHROMIUM)),)
	@printf '\033[1;33mSKIPPED: no browser at $(CHROMIUM) (set CHROMIUM=… or apt install chromium)\033[0m\n'
else
	cd labextension && CHROMIUM='$(CHROMIUM)' jlpm test:ui:server $(ARGS)
endif

# Several tests run at a time, and each worker has a host of its own.
# Tests marked `exclusive` run while no other test does (tests/support/exclusive.py).
# A test waits for about half of its time, so two workers keep a processor busy.
PARALLEL := --numprocesses $(shell echo $$((2 * $(JOBS)))) --dist worksteal

pictures: env labextension/node_modules/.yarn-state.yml
	$(call say,'Pictures of the documentation')
	cd labextension && CHROMIUM='$(CHROMIUM)' node ui-tests/with-server.mjs ui-tests/pictures.mjs

docs: $(VENV)/.docs
	$(call say,'Documents')
	$(BIN)/sphinx-build -W --keep-going -n -q docs docs/_build

reference: env
	$(BIN)/python docs/generate.py

# Of the tests with a framework only the shortest file, which is skipped where `make frameworks` has not run, and the file
# that needs none.
LONG_FRAMEWORK_TESTS := $(filter-out %/test_loading.py %/test_comparison.py,$(wildcard tests/frameworks/test_*.py))

pytest: env
	$(call say,'Tests: Python and C')
	$(BIN)/python -m pytest $(addprefix --ignore=,$(LONG_FRAMEWORK_TESTS)) $(PARALLEL) $(ARGS)

# The shim and the simulated driver built with AddressSanitizer and UBSan, then with ThreadSanitizer.
SANITIZED := tests/native tests/driver_facts
SANITIZED_SHORT := tests/native/test_sanitizers.py $(addprefix tests/native/test_shim_,memory.py ledger.py gate.py owned_fds.py threads.py)

sanitize sanitize-short: env
	$(call say,'Tests: C under sanitizers')
	@for kind in address thread; do \
	    GPUSHARE_TEST_SANITIZE=$$kind $(BIN)/python -m pytest -q $(PARALLEL) $(if $(filter sanitize,$@),$(SANITIZED),$(SANITIZED_SHORT)) $(ARGS); \
	done

FUZZ_SECONDS ?= 60
FUZZ_MESSAGES ?= 1000000
FUZZ_SEED := $(or $(GPUSHARE_TEST_SEED),$(shell echo $$RANDOM))

fuzz: env
	$(call say,'Tests: random input for the parsers ($(FUZZ_SECONDS) s each) and new examples for the core')
	GPUSHARE_TEST_FUZZ=$(FUZZ_SECONDS) $(BIN)/python -m pytest --hypothesis-profile=default tests/fuzz tests/core $(ARGS)
	$(call say,'Tests: $(FUZZ_MESSAGES) random messages for the coordinator (GPUSHARE_TEST_SEED=$(FUZZ_SEED))')
	GPUSHARE_TEST_MESSAGES=$(FUZZ_MESSAGES) GPUSHARE_TEST_SEED=$(FUZZ_SEED) $(BIN)/python -m pytest --hypothesis-profile=default -s tests/hostile $(ARGS)
	$(call say,'Tests: random requests for the REST interface')
	GPUSHARE_TEST_EXAMPLES=200 GPUSHARE_TEST_SEED=$(FUZZ_SEED) $(BIN)/python -m pytest --hypothesis-profile=default tests/server/test_openapi.py $(ARGS)

FAULTS ?= 1e8
FIRST ?= 0

faults: env
	$(call say,'Tests: faults in virtual time ($(FAULTS) events from seed $(FIRST) on)')
	GPUSHARE_TEST_FAULTS=$(FAULTS) GPUSHARE_TEST_FAULTS_FIRST=$(FIRST) $(BIN)/python -m pytest $(PARALLEL) tests/faults/test_faults.py $(ARGS)

stress: env
	$(call say,'Tests: the ledger under load')
	GPUSHARE_TEST_OPERATIONS=1000000 $(BIN)/python -m pytest tests/native/test_shim_ledger.py $(ARGS)

SEED ?=

# `make test` has a short form.
chaos: env
	$(call say,'Tests: kills and stops at random moments')
	GPUSHARE_TEST_CHAOS=long GPUSHARE_TEST_SEED=$(SEED) GPUSHARE_TEST_FIGURES=$(CURDIR)/build/chaos $(BIN)/python -m pytest -s tests/chaos $(ARGS)

# PyTorch with CUDA, without NVIDIA's libraries: native/simcudart has stand-ins for them.
FRAMEWORKS := .venv-frameworks

$(FRAMEWORKS)/.installed: tests/frameworks/requirements.txt
	$(call say,'PyTorch in $(FRAMEWORKS)')
	test -x $(FRAMEWORKS)/bin/pip || $(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --progress-bar off --no-deps 'torch>=2.14'
	$(FRAMEWORKS)/bin/python -m pip install --progress-bar off -r $<
	@touch $@

frameworks: env $(FRAMEWORKS)/.installed
	$(call say,'Numba in .suites')
	$(BIN)/python -m tests.frameworks.suites numba-cuda
	$(call say,'Stand-ins for the libraries of CUDA')
	$(BIN)/python native/simcudart/build.py --framework $(FRAMEWORKS)/lib/python*/site-packages/torch/lib --output build/simcudart

# The nightly tier compares the suites that could be had, and fails without the others.
suites: frameworks
	$(call say,'Public test suites in .suites')
	$(BIN)/python -m tests.frameworks.suites

test-frameworks: frameworks
	$(call say,'Tests: PyTorch and public test suites on the simulated device')
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS) tests/frameworks

# The interception comes first, and then the facts, at the same time. The facts that fill the card or compare its free
# memory run one after the other. All parts share one deadline and each part has a limit (tests/gpu/limits.py). No failure
# stops the following parts. The target needs no lab extension, and so no network if pip needs none.
CARD_SECONDS := 480
CARD_FIRST_PARTS := $(patsubst %,tests/gpu/test_%.py,lookup bypass)
CARD_PARTS := $(patsubst %,tests/gpu/test_%.py,costs trainings graphs frameworks exits hibernation cgroup benches)
CARD_PYTEST := $(BIN)/python -m pytest -p no:benchmark
CARD_FIGURES := DRIVER=gpu GPUSHARE_TEST_FIGURES=$(CURDIR)/build/gpu

test-gpu: native
	$(call say,'Tests on the real GPU')
	export GPUSHARE_TEST_DEADLINE=$$(($$(date +%s) + $(CARD_SECONDS))); status=0; \
	$(CARD_FIGURES)/interception $(CARD_PYTEST) $(CARD_FIRST_PARTS) $(ARGS) || status=$$?; \
	$(CARD_FIGURES)/facts $(CARD_PYTEST) -n 6 -m 'not whole_card' tests/driver_facts $(ARGS) || status=$$?; \
	$(CARD_FIGURES)/memory_facts $(CARD_PYTEST) -m whole_card tests/driver_facts $(ARGS) || status=$$?; \
	$(CARD_FIGURES) $(CARD_PYTEST) $(CARD_PARTS) $(ARGS) || status=$$?; \
	exit $$status

format: env
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(C_FILES)
	cd labextension && jlpm fix

# --- release ------------------------------------------------------------------------------------------------

wheel: env
	rm -rf dist
	$(BIN)/python -m build

clean:
	rm -rf build dist docs/_build demo-report jupyter_gpushare/native jupyter_gpushare/labextension $(VENV)/.labextension
	rm -rf labextension/lib labextension/tsconfig.tsbuildinfo labextension/coverage
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis

distclean: clean
	rm -rf $(VENV) $(FRAMEWORKS) .suites labextension/node_modules labextension/.yarn
