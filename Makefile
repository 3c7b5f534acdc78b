# TORCH=oldest: with the oldest torch on which what readers copy is tested, in an environment of its own.
PYTHON ?= python3
TORCH ?= newest
$(if $(filter-out oldest newest,$(TORCH)),$(error TORCH is oldest or newest, not $(TORCH)))
ifeq ($(TORCH),oldest)
VENV := .venv-oldest-torch
VERSIONS := .ci/oldest-torch.txt
PACKAGES := -r $(VERSIONS) -e ".[test]" -e ./rank_tools
else
VENV := .venv
VERSIONS := .ci/constraints.txt
PACKAGES := -c $(VERSIONS) -e ".[course,test]" -e ./rank_tools
endif
BIN := $(VENV)/bin
DONE := $(VENV)/.installed
SITE := $(VENV)/.installed-site
OLDEST := .venv-oldest-kernel
RULES := tests/test_anatomy.py tests/test_sync.py tests/test_planted_faults.py
SIDE_BY_SIDE := -n 3 --dist worksteal

# TORCH_INDEX: address of another package index to take torch from, such as that of the small CPU builds.
export TORCH_INDEX
NO_PYTHON := $(PYTHON) is no Python 3 that starts: install Python 3.11 to 3.14, or name one, as in PYTHON=python3.12
SET_UP = test "$$($(PYTHON) -c 'import sys; print(sys.version_info[0])' 2>&1)" = 3 \
	|| { echo "set-up: $(NO_PYTHON)"; exit 1; }; $(PYTHON) .ci/set_up.py $@
# An environment whose Python is gone, as after an upgrade of the system, is made again.
$(shell test -x $(BIN)/python || rm -f $(DONE))

.PHONY: help setup answers lab fit test test-all more copied run check sync refresh site clean
.DEFAULT_GOAL := help

help:
	@echo "For readers:"
	@echo "  make lab       set everything up and open the course in JupyterLab"
	@echo "  make fit       is this machine ready? a minute"
	@echo "  make test      run every lesson and the quick tests, in a copy of the course; minutes"
	@echo "  make run       execute every lesson through papermill into runs/ (WORLD_SIZE=4 for 4 ranks)"
	@echo "  make site      build the web site of the course into docs/_build/html, without running anything"
	@echo "For those who write lessons:"
	@echo "  make sync      labs, cells, stubs and tables agree again, and all code is formatted"
	@echo "  make refresh   execute the lessons that changed and keep their outputs (LESSONS='05 06' for some)"
	@echo "  make check     the tests that take seconds (LESSON=12 for those of one lesson)"
	@echo "  make test-all  make test, and all that it leaves out"
	@echo "make clean removes what make installed and built; answers and runs/ stay"

$(DONE): pyproject.toml rank_tools/pyproject.toml $(VERSIONS)
	@$(SET_UP) $(PACKAGES)

$(SITE): $(DONE)
	@$(SET_UP) -c .ci/constraints.txt -e ".[site]"

$(OLDEST)/.installed: .ci/oldest-kernel.txt $(DONE)
	@$(SET_UP) -r .ci/oldest-kernel.txt

setup: $(DONE) answers

# Answers of the layout before version 3 are found and moved.
answers: $(DONE)
	@test ! -d labs/exercises || $(BIN)/python -m shared.tools.move_answers

lab: $(DONE) answers
	@$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks/00_start_here.ipynb

fit: $(DONE) answers
	@$(BIN)/python -m shared.tools.fit

test: $(DONE) answers
	@$(BIN)/python -m pytest -m "lesson or not (slow or author)" $(SIDE_BY_SIDE)

test-all: test more
	@$(MAKE) --no-print-directory copied TORCH=oldest

# What make test leaves out.
more: $(DONE) $(SITE) $(OLDEST)/.installed
	@$(BIN)/python -m pytest tests labs rank_tools -m "slow or author" $(SIDE_BY_SIDE) --durations=20

# What readers copy; with TORCH=oldest on the oldest torch that it is for.
copied: $(DONE)
	@$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) tests/test_plain_labs.py labs/lesson_10/test_lesson_10_script.py rank_tools/tests/test_doctor.py

run: $(DONE) answers
	@$(BIN)/python -m shared.tools.run_all $(if $(WORLD_SIZE),--world-size $(WORLD_SIZE))

# LESSON=12: what is quick of one lesson.
check: $(DONE) answers
ifdef LESSON
	@$(BIN)/python -m pytest -q labs/lesson_$(LESSON) $(RULES) tests/test_exercises.py -m "not slow" \
		-k "lesson_$(LESSON) or $(LESSON)_ or test_anatomy or test_sync or test_planted_faults"
else
	@$(BIN)/python -m pytest -q tests labs rank_tools -m "not slow" $(SIDE_BY_SIDE)
endif

sync: $(DONE) answers
	@$(BIN)/python -m shared.tools.sync

refresh: sync
	@$(BIN)/python -m shared.tools.refresh $(LESSONS)
	@$(BIN)/python -m shared.tools.sync

site: $(SITE)
	@$(BIN)/python -m docs.build

clean:
	rm -rf .venv .venv-oldest-torch $(OLDEST) docs/_build
