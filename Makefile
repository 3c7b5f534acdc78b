# The targets a reader needs: lab, test, run. Those who write lessons: lesson, sync, check, refresh, format, bench.
# TORCH=oldest: with the oldest torch that pyproject.toml allows, in an environment of its own.
PYTHON ?= python3
TORCH ?= newest
$(if $(filter-out oldest newest,$(TORCH)),$(error TORCH is oldest or newest, not $(TORCH)))
VENV := $(if $(filter oldest,$(TORCH)),.venv-oldest-torch,.venv)
PINS := pinned $(if $(filter oldest,$(TORCH)),--over oldest-torch)
BIN := $(VENV)/bin
DONE := $(VENV)/.installed
SITE := $(VENV)/.installed-site
OLDEST := .venv-oldest-kernel
SIDE_BY_SIDE := -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: help setup lab test run check lesson sync refresh format bench browser site clean
.DEFAULT_GOAL := help

help:
	@echo "make setup    set everything up"
	@echo "make lab      set everything up and open the course in JupyterLab"
	@echo "make test     set everything up and run all tests (minutes)"
	@echo "make run      execute every lesson through papermill into runs/ (WORLD_SIZE=4 for 4 ranks)"
	@echo "make check    the tests that take seconds"
	@echo "make lesson   write the skeleton of a lesson, and run it (N=29 TITLE='Another lesson')"
	@echo "make sync     write labs, stubs and tables from the notebooks"
	@echo "make refresh  execute the lessons that changed and keep their outputs"
	@echo "make format   format labs, shared and tests, and put the labs back into their cells"
	@echo "make bench    measure the helpers and the lessons (minutes)"
	@echo "make browser  run lesson 00 in JupyterLab in a headless Chromium (LESSONS='01 02' for others)"
	@echo "make site     build the web site of the course into docs/_build/html, without running anything"

# TORCH_INDEX: address of another package index to take torch from, such as that of the small CPU builds.
$(DONE): pyproject.toml
	@test -x $(BIN)/pip || $(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is %d.%d: make PYTHON=python3.11" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo "installing the pinned packages; this takes minutes, once"
	@if [ -n "$(TORCH_INDEX)" ]; then $(BIN)/python -m pip install -q --index-url "$(TORCH_INDEX)" $$($(BIN)/python shared/tools/pins.py $(PINS) --only torch torchvision); fi
	@$(BIN)/python -m pip install -q -e ".[test]" $$($(BIN)/python shared/tools/pins.py $(PINS))
	@touch $(DONE)

$(SITE): pyproject.toml $(DONE)
	@$(BIN)/python -m pip install -q -e ".[site,site-pinned]"
	@touch $@

$(OLDEST)/.installed: pyproject.toml $(DONE)
	@test -x $(OLDEST)/bin/pip || $(BIN)/python -m venv $(OLDEST)
	@$(OLDEST)/bin/python -m pip install -q $$($(BIN)/python shared/tools/pins.py oldest-kernel)
	@touch $@

setup: $(DONE)

lab: $(DONE)
	@$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks/00_start_here.ipynb

test: $(DONE) $(SITE) $(OLDEST)/.installed
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE) --durations=10

check: $(DONE)
	@$(BIN)/python -m pytest -q tests -m "not slow" $(SIDE_BY_SIDE)

run: $(DONE)
	@$(BIN)/python -m shared.tools.run_all $(if $(WORLD_SIZE),--world-size $(WORLD_SIZE))

lesson: $(DONE)
	@$(BIN)/python -m shared.tools.new_lesson -- "$$N" "$$TITLE"
	@$(BIN)/python -m shared.tools.refresh "$$N"

sync: $(DONE)
	@$(BIN)/python -m shared.tools.sync

refresh: $(DONE)
	@$(BIN)/python -m shared.tools.sync
	@$(BIN)/python -m shared.tools.refresh $(LESSONS)
	@$(BIN)/python -m shared.tools.sync

format: $(DONE)
	@$(BIN)/python -m shared.tools.format

bench: $(DONE)
	@$(BIN)/python -m shared.tools.bench

browser: $(DONE)
	@$(if $(LESSONS),LESSONS="$(LESSONS)") $(BIN)/python -m pytest -q -rs tests/test_browser.py

site: $(SITE)
	@$(BIN)/python -m docs.build

clean:
	rm -rf .venv .venv-oldest-torch $(OLDEST) runs results docs/_build
