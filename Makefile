# Needs python3 (3.11 or newer) with pip; everything else goes into $(VENV).
PYTHON ?= python3
VENV   ?= .venv

BIN := $(VENV)/bin
PIP := $(PYTHON) -m pip --python $(BIN)/python

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test check format bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.runtime  ## run the order-processing story on an SQLite file
	@$(BIN)/python examples/orders.py

test: $(VENV)/.dev  ## run every check and every test
	@$(BIN)/python tools/check.py

check: $(VENV)/.dev  ## run the checks only: format, lint, types, import layers
	@$(BIN)/python tools/check.py format lint mypy pyright imports

format: $(VENV)/.dev  ## format the code and apply safe fixes
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

bench: $(VENV)/.bench  ## measure against raw sqlite3, raw psycopg and other queues
	@$(BIN)/python -m bench $(ARGS)

clean:  ## remove the environment and all caches
	rm -rf $(VENV) .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# uv is several times faster; where it cannot be installed, pip does the same work.
define install
	@echo "installing $(1) into $(VENV) ..."
	@if $(BIN)/uv --version >/dev/null 2>&1; then \
		$(BIN)/uv pip install --quiet --python $(BIN)/python \
			--constraints constraints.txt --build-constraints constraints.txt --editable '$(1)'; \
	else \
		PIP_CONSTRAINT=constraints.txt $(PIP) install -qq --editable '$(1)'; \
	fi
endef

$(VENV)/.runtime: pyproject.toml constraints.txt | $(VENV)/.created
	$(call install,.)
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.created
	$(call install,.[dev])
	@touch $(VENV)/.runtime $@

# Without the other queues there is still everything else to measure.
$(VENV)/.bench: pyproject.toml constraints.txt | $(VENV)/.dev
	$(call install,.[bench]) || echo "going on without the other queues" >&2
	@touch $@

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv --clear --without-pip $(VENV)
	@$(PIP) install -qq --only-binary :all: --constraint constraints.txt uv || \
		echo "uv is not available, going on with pip" >&2
	@touch $@
