# make train    the whole pipeline on the embedded prices      make test      the tests
# make demo     the same, reduced to 1 or 2 minutes            make lint      ruff and mypy
# make evidence the long measurements (resumable), and tests   make docs      the documentation as a site
# make audit    known vulnerabilities of the dependencies      make clean     remove caches
# make lock     requirements.lock anew, after constraints.txt
# make agent    RUN=logs/RUN NAME=sp500: the agent of a run as one that comes with finflow
#
# Each makes .venv when it is missing and reuses it when it is current. More options: make train ARGS="--seed 1".
# Another Python: make PYTHON=python3.12 train. Packages by the hashes of requirements.lock: make HASHED=1 test

PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
SITE_BUILDER := $(VENV)/.installed-docs
CURRENT := import sys; sys.exit(sys.version_info < (3, 11))
AUDITOR := .venv-audit/bin/pip-audit
LOCKER := .venv-lock/bin/uv
ARGS ?=
HASHED ?=

.DEFAULT_GOAL := help
.PHONY: help train demo agent test lint evidence docs audit lock clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile

train: $(INSTALLED)
	$(PY) main.py --mode train $(ARGS)

agent: $(INSTALLED)
	@test -n "$(RUN)" && test -n "$(NAME)" || { echo "error: make agent needs RUN=logs/RUN and NAME=name" >&2; exit 2; }
	$(PY) -m finflow.training.checkpoints.packaged_agents $(RUN) $(NAME)

demo: $(INSTALLED)
	$(PY) main.py --mode demo $(ARGS)

test: $(INSTALLED)
	$(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 \
		--ignore tests/evidence --ignore tests/replicate $(ARGS)

lint: $(INSTALLED)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m mypy --package scripts.evidence --package scripts.replicate

evidence: $(INSTALLED)
	$(PY) -m pytest -q -n 2 --dist loadfile tests/evidence tests/replicate
	$(PY) -m scripts.evidence $(ARGS)

docs: $(SITE_BUILDER)
	$(PY) -m mkdocs build --strict $(ARGS)

audit: $(INSTALLED)
	@test -x $(AUDITOR) || { $(PY) -m venv --clear .venv-audit && timeout 300 .venv-audit/bin/python -m pip install \
		--quiet --disable-pip-version-check pip-audit==2.10.1; } >/dev/null 2>&1 || true
	@$(PY) scripts/audit_dependencies.py $(AUDITOR) $(ARGS)

lock: $(INSTALLED)
	@test -x $(LOCKER) || { $(PY) -m venv --clear .venv-lock && \
		.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check uv; }
	$(PY) scripts/lock_dependencies.py $(LOCKER)

clean:
	rm -rf build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml setup.py constraints.txt requirements.lock
	@$(PY) -c '$(CURRENT)' 2>/dev/null || { \
		test -n "$(PYTHON)" && $(PYTHON) -c '$(CURRENT)' 2>/dev/null || { \
			echo "finflow needs Python 3.11 or newer with its venv module (python3-venv on Debian and Ubuntu);" \
				"name one with make PYTHON=/path/to/python3" >&2; exit 1; }; \
		echo "making $(VENV) with $(PYTHON)"; $(PYTHON) -m venv --clear $(VENV); }
	$(if $(HASHED),$(PY) -m pip install --disable-pip-version-check --require-hashes --no-deps -r requirements.lock)
	$(PY) -m pip install --disable-pip-version-check $(if $(HASHED),--no-build-isolation) -c constraints.txt -e '.[dev]'
	@touch $@

$(SITE_BUILDER): $(INSTALLED)
	$(PY) -m pip install --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@
