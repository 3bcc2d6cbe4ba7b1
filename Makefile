# make train    the whole pipeline on the embedded prices      make test      the tests
# make demo     the same, reduced to about a minute            make lint      ruff and mypy
# make evidence the long measurements (resumable)              make docs      the documentation as a site
#                                                              make clean     remove caches
#
# Each makes .venv when it is missing and reuses it when it is current. More options: make train ARGS="--seed 1".
# Another Python: make PYTHON=python3.12 train

PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
SITE_BUILDER := $(VENV)/.installed-docs
CURRENT := import sys; sys.exit(sys.version_info < (3, 11))
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help train demo test lint evidence docs clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile

train: $(INSTALLED)
	$(PY) main.py --mode train $(ARGS)

demo: $(INSTALLED)
	$(PY) main.py --mode demo $(ARGS)

test: $(INSTALLED)
	$(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(ARGS)

lint: $(INSTALLED)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m mypy --package scripts.evidence --package scripts.replicate

evidence: $(INSTALLED)
	$(PY) -m scripts.evidence $(ARGS)

docs: $(SITE_BUILDER)
	$(PY) -m mkdocs build --strict $(ARGS)

clean:
	rm -rf build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml setup.py constraints.txt
	@$(PY) -c '$(CURRENT)' 2>/dev/null || { \
		test -n "$(PYTHON)" && $(PYTHON) -c '$(CURRENT)' 2>/dev/null || { \
			echo "finflow needs Python 3.11 or newer with its venv module (python3-venv on Debian and Ubuntu);" \
				"name one with make PYTHON=/path/to/python3" >&2; exit 1; }; \
		echo "making $(VENV) with $(PYTHON)"; $(PYTHON) -m venv --clear $(VENV); }
	$(PY) -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(SITE_BUILDER): $(INSTALLED)
	$(PY) -m pip install --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@
