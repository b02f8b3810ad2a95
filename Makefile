# Every target is a line in `make help`. The environment lives in .venv and is made by whatever needs it.
PYTHON ?= python3
PY := .venv/bin/python
# Two tests at once, all of a file on one worker: they share what is trained. The slowest are told, so that growth is seen.
PYTEST := $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=20
# The set-up is done again when the folder moved or one of these files changed.
WANTED := $(shell pwd | cksum) $(shell cat pyproject.toml requirements.txt | cksum)

.DEFAULT_GOAL := help
.PHONY: help lab setup test test-all test-notebooks test-slow bench claims soak mutants grade labs format lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):[^#]*## (.*)/make \1|\2/' | column -t -s '|' 2>/dev/null \
		|| grep -hE '^[a-z-]+:.*##' Makefile

lab: setup ## set up what is missing and open the course in JupyterLab
	@JUPYTER_CONFIG_PATH="$(CURDIR)/.jupyter" $(PY) -m jupyterlab

setup: ## make .venv with everything in it and prepare the embedded dataset
	@if [ "$$(cat .venv/.ready 2>/dev/null)" != "$(WANTED)" ]; then $(MAKE) --no-print-directory .venv/.ready; fi
	@[ -f data/digits.pt ] || $(PY) -m utils.data digits

.PHONY: .venv/.ready
.venv/.ready:
	@command -v "$(PYTHON)" >/dev/null || { echo "Lockstep needs Python 3.11 or newer and found no $(PYTHON):" \
		"install it, or name yours: make setup PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Lockstep needs Python 3.11 or newer," \
		"but $(PYTHON) is $$("$(PYTHON)" --version 2>&1): name another: make setup PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv module:" \
		"install it (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@echo "Setting up .venv (PyTorch is large: a minute or more the first time)"
	@"$(PYTHON)" -m venv .venv
	@$(PY) -m pip install --quiet --disable-pip-version-check uv
	@$(PY) -m uv pip install --quiet --python $(PY) -r requirements.txt
	@$(PY) -m uv pip install --quiet --python $(PY) --no-deps --editable .
	@echo "$(WANTED)" > .venv/.ready

test: setup ## check style, then test every property, with two notebooks in a browser: some minutes
	@$(PY) -m ruff check . && $(PY) -m ruff format --check .
	@$(PY) -m nbstripout --verify notebooks/*.ipynb
	@.venv/bin/actionlint -shellcheck= -pyflakes= .github/workflows/*.yml
	@$(PYTEST) -m "not slow" tests

test-all: test test-notebooks test-slow ## the same, then what follows

test-notebooks: setup ## run all notebooks in full, with every claim that they make
	@$(PY) -m pytest --durations=20 notebooks

test-slow: setup ## the tests that take long: whole classes, whole datasets, every way of being stopped
	@$(PYTEST) -m slow tests

bench: setup ## measure the parts of the course beside what they are compared with: one table of ratios
	@$(PY) -m benchmarks

claims: setup ## measure what is missing of ten runs of every claim in each precision: hours; make claims CHAPTERS="04 05"
	@$(PY) -m benchmarks.claims $(CHAPTERS) $(if $(ANEW),--anew)

soak: setup ## start and end 100 training runs, kill twenty; grade a class of 30 in each kind of sandbox, and killed ten times
	@LOCKSTEP_SOAK=100 $(PY) -m pytest tests/scripts/test_clean_end.py tests/scripts/test_survival.py -s
	@LOCKSTEP_CLASS=30 $(PY) -m pytest tests/grader/test_grader.py tests/grader/test_whole_class.py -s

mutants: setup ## put all wrong and right submissions through the checker, or some: make mutants LABS="03 04"
	@$(PY) tests/support/mutants.py $(LABS)
	@[ -n "$(LABS)" ] || $(PY) tests/support/mutants.py assignment

grade: setup ## grade a folder: make grade SUBMISSIONS=dir [ROSTER=csv] [OUT=grades] [JOBS=n]
	@[ -n "$(SUBMISSIONS)" ] || { echo "name the folder with the submissions: make grade SUBMISSIONS=dir" >&2; exit 1; }
	@$(PY) -m assessment.grade "$(SUBMISSIONS)" $(if $(ROSTER),--roster "$(ROSTER)") $(if $(OUT),--out "$(OUT)") \
		$(if $(JOBS),-j "$(JOBS)")

labs: setup ## make labs/ from solutions/, except what a learner has changed
	@$(PY) -m assessment.starters

format: setup ## format the code and strip the notebooks
	@$(PY) -m ruff check --fix --quiet . ; $(PY) -m ruff format . && $(PY) -m nbstripout notebooks/*.ipynb

lock: setup ## compile requirements.txt from pyproject.toml, with the newest versions
	@$(PY) -m uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras --no-header \
		--no-emit-index-url pyproject.toml -o requirements.txt

clean: ## remove the environment, prepared data and runs
	@rm -rf .venv data runs
