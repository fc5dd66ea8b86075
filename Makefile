# make run and make test are the only two commands on a fresh machine; each sets up all it needs.
PYTHON ?= python3
PROFILE ?= local
PORT ?= 8000

BIN := .venv/bin
STAMP := .venv/.ready
export OMP_WAIT_POLICY := passive

.PHONY: env run test lint bench

env: $(STAMP)

$(STAMP): core/pyproject.toml licenses/pyproject.toml models/tiny_glm/pyproject.toml constraints.txt requirements-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -r requirements-dev.txt -e licenses -e core -e models/tiny_glm
	touch $@

run: env
	$(BIN)/glmserve run --profile $(PROFILE) --port $(PORT)

test: env
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: env
	$(BIN)/python bench/compare.py --profile $(PROFILE)
