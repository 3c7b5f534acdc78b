# The targets a reader needs: lab, test, run. Those who write lessons: sync, check, refresh, format.
# TORCH=oldest: with the oldest torch on which what readers copy is tested, in an environment of its own.
PYTHON ?= python3
TORCH ?= newest
$(if $(filter-out oldest newest,$(TORCH)),$(error TORCH is oldest or newest, not $(TORCH)))
ifeq ($(TORCH),oldest)
VENV := .venv-oldest-torch
VERSIONS := .ci/oldest-torch.txt
PACKAGES := -r $(VERSIONS) -e ".[test]"
else
VENV := .venv
VERSIONS := .ci/constraints.txt
PACKAGES := -c $(VERSIONS) -e ".[course,test]"
endif
BIN := $(VENV)/bin
DONE := $(VENV)/.installed
SITE := $(VENV)/.installed-site
OLDEST := .venv-oldest-kernel
SIDE_BY_SIDE := -n 3 --dist worksteal

# TORCH_INDEX: address of another package index to take torch from, such as that of the small CPU builds.
export TORCH_INDEX
NO_PYTHON := $(PYTHON) is no Python 3 that starts: install Python 3.11 to 3.14, or name one, as in PYTHON=python3.12
SET_UP = test "$$($(PYTHON) -c 'import sys; print(sys.version_info[0])' 2>&1)" = 3 \
	|| { echo "set-up: $(NO_PYTHON)"; exit 1; }; $(PYTHON) .ci/set_up.py $@
# An environment whose Python is gone, as after an upgrade of the system, is made again.
$(shell test -x $(BIN)/python || rm -f $(DONE))

.PHONY: help setup lab test test-cold test-all test-copied test-elsewhere run check sync refresh format browser site clean
.DEFAULT_GOAL := help

help:
	@echo "make setup    set everything up"
	@echo "make lab      set everything up and open the course in JupyterLab"
	@echo "make test     set everything up and run the tests (minutes)"
	@echo "make test-cold  the notebooks as a reader's shell runs them, each lab by torchrun itself"
	@echo "make test-all   make test, and what needs a browser, Sphinx, Slurm, a second kernel or a soak"
	@echo "make test-copied TORCH=oldest   run what readers copy on the oldest torch that it is for"
	@echo "make test-elsewhere   run the lessons as processors with older vector instructions do"
	@echo "make run      execute every lesson through papermill into runs/ (WORLD_SIZE=4 for 4 ranks)"
	@echo "make check    the tests that take seconds"
	@echo "make sync     write labs, stubs and tables from the notebooks"
	@echo "make refresh  execute the lessons that changed and keep their outputs"
	@echo "make format   format labs, shared and tests, and put the labs back into their cells"
	@echo "make browser  run lesson 00 in JupyterLab in a headless Chromium (LESSONS='01 02' for others)"
	@echo "make site     build the web site of the course into docs/_build/html, without running anything"

$(DONE): pyproject.toml $(VERSIONS)
	@$(SET_UP) $(PACKAGES)

$(SITE): $(DONE)
	@$(SET_UP) -c .ci/constraints.txt -e ".[site]"

$(OLDEST)/.installed: .ci/oldest-kernel.txt $(DONE)
	@$(SET_UP) -r .ci/oldest-kernel.txt

setup: $(DONE)

lab: $(DONE)
	@$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks/00_start_here.ipynb

test: $(DONE)
	@$(BIN)/python -m pytest -m "not heavy" $(SIDE_BY_SIDE) --durations=10

test-cold: $(DONE)
	@RANK_BY_RANK_NOTEBOOKS=cold $(BIN)/python -m pytest notebooks $(SIDE_BY_SIDE) --durations=10

test-all: $(DONE) $(SITE) $(OLDEST)/.installed
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE) --durations=10

test-elsewhere: $(DONE)
	@$(BIN)/python -m tests.elsewhere $(LESSONS)

test-copied: $(DONE)
	@$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) tests/test_plain_labs.py tests/test_lesson_10_script.py tests/test_doctor.py

check: $(DONE)
	@$(BIN)/python -m pytest -q tests -m "not slow and not heavy" $(SIDE_BY_SIDE)

run: $(DONE)
	@$(BIN)/python -m shared.tools.run_all $(if $(WORLD_SIZE),--world-size $(WORLD_SIZE))

sync: $(DONE)
	@$(BIN)/python -m shared.tools.sync

refresh: $(DONE)
	@$(BIN)/python -m shared.tools.sync
	@$(BIN)/python -m shared.tools.refresh $(LESSONS)
	@$(BIN)/python -m shared.tools.sync

format: $(DONE)
	@$(BIN)/python -m shared.tools.format

browser: $(DONE)
	@$(if $(LESSONS),LESSONS="$(LESSONS)") $(BIN)/python -m pytest -q -rs tests/test_browser.py

site: $(SITE)
	@$(BIN)/python -m docs.build

clean:
	rm -rf .venv .venv-oldest-torch $(OLDEST) runs results docs/_build
