# Two commands: `make start` runs the quick-start benchmark, `make test` the complete test suite.
# Each makes its virtual environment first and needs only Python 3.11 or 3.12.

PYTHON ?= python3
INTERPRETER := $(if $(filter 3.%,$(PYTHON)),python3,$(PYTHON))
VENV ?= .venv
OFFLINE ?= build/offline
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CONSTRAINTS := deploy/constraints.txt
NODES ?= 2
NFS := user-mode-linux nfs-kernel-server nfs-common rpcbind kmod iproute2 e2fsprogs
SLURM := slurm-wlm slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libpmix-dev
HOURS ?= 0.05
# Two of them wait for SLURM for most of half of the time.
WORKERS ?= $(shell echo $$(($$(nproc) + 2)))
N ?= 200
SEED ?= 1
LAUNCHER ?= array

# Each of the suite's hundreds of processes would compile again what it imports, and each of its
# workers would rewrite all tests.
unexport PYTHONDONTWRITEBYTECODE

# With the flags of this make its build would keep to one core.
HOROVOD := MAKEFLAGS=-j$(shell nproc) HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
	HOROVOD_CPU_OPERATIONS=GLOO HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 \
	HOROVOD_WITHOUT_MXNET=1
# pip would compile by one core. Some packages have files that no Python can compile.
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
# What is built for the tests is not optimised, which takes a third less. pip would keep it.
ifdef UNOPTIMISED
HOROVOD += HOROVOD_DEBUG=1
else
ANEW := --force-reinstall --no-cache-dir
endif

.PHONY: start test suite check quick horovod faults fuzz chaos slurm nfs nfs-packages offline benchmarks benchmarks-search \
	benchmarks-training mishaps mutation packages browser browser-packages scaling docs man release trust screenshots clean

start: $(VENV)/.installed
	$(BIN)/aiperf start --nodes $(NODES) --hours $(HOURS) --config quickstart --launcher local --yes

# pip needs one core. The checks do too, and the suite waits for half of its time.
test:
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=line $(VENV)/.installed-test packages
	@$(MAKE) --no-print-directory horovod UNOPTIMISED=1 || echo "make: Horovod could not be built"
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=line check suite

suite: $(VENV)/.installed-test
	$(BIN)/python -m pytest --numprocesses $(WORKERS)

check: $(VENV)/.installed-test
	$(PIP) check
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy tests examples docs
	$(BIN)/lint-imports --no-logo

# The collective `horovod`, which has no wheels: two minutes. With MPI or NCCL: docs/collectives.md.
horovod: $(VENV)/.installed
	@command -v cmake >/dev/null || { echo "make: no cmake: apt-get install cmake g++"; exit 1; }
	$(PIP) install --quiet "setuptools<81" wheel
	PATH="$(abspath $(BIN)):$$PATH" CMAKE_POLICY_VERSION_MINIMUM=3.5 $(HOROVOD) \
	  $(PIP) install $(ANEW) --no-build-isolation --constraint $(CONSTRAINTS) horovod==0.28.1

# All tests but the real runs, SLURM and the real CIFAR-10: for while you work.
quick: $(VENV)/.installed-test
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --ignore tests/end_to_end --ignore tests/slurm -m 'not cifar10 and not chaos and not nfs and not browser and not fuzz and not trust'

# All tests on a real SLURM cluster, those of nodes that are not what a run needs included; as root.
faults: $(VENV)/.installed-test slurm
	$(BIN)/python -m pytest tests/slurm -m ''

# Ten thousand requests of the service, made of its own description, and 20,000 files of strangers,
# changed at random: half an hour.
fuzz: $(VENV)/.installed-test
	$(BIN)/python -m pytest tests/service tests/fuzz -m fuzz -s

# N random changes of the code that decides a score, and the fraction that tests find: half an hour.
mutation: $(VENV)/.installed-test
	$(BIN)/python -m tests.mutation.sample --trace
	$(BIN)/python -m tests.mutation.sample --number $(N) --seed $(SEED)

# N random faults on runs of such a cluster, and whether every record and score adds up.
chaos: $(VENV)/.installed-test slurm
	$(BIN)/python -m tests.chaos --faults $(N) --seed $(SEED) --launcher $(LAUNCHER)

# All forgeries of a signed run, and its bytes changed one by one: whether `aiperf verify` finds each.
# A quarter of an hour.
trust: $(VENV)/.installed-test
	$(BIN)/python -m pytest tests/forgery -m ''
	$(BIN)/python benchmarks/byte_changes.py --changes 2000

# N honest runs with random mishaps, of which no rule may fail.
mishaps: $(VENV)/.installed-test
	$(BIN)/python -m tests.chaos.mishaps --runs $(N) --seed $(SEED)

# The documentation as a site: build/site/index.html, which needs no server.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

# The manual page aiperf(1), from the program's help; the wheel installs it.
man: $(VENV)/.installed
	$(BIN)/python docs/hooks/man_page.py > docs/.aiperf.1
	mv docs/.aiperf.1 docs/aiperf.1

# The list of this version's files, by which a run's code is known as a release (docs/divisions.md).
release: $(VENV)/.installed-test
	$(BIN)/python -m aiperf_hpc.integrity.release

# Weak scaling in simulation, 1 to 4,096 nodes: a report in runs/scaling/n4096/report.
scaling: $(VENV)/.installed-test
	$(BIN)/python benchmarks/scaling.py

# What the control side costs at scale. Figures and machine: docs/performance.md.
benchmarks: $(VENV)/.installed-test
	$(BIN)/python benchmarks/replay.py
	$(BIN)/python benchmarks/control_load.py primary
	$(BIN)/python benchmarks/control_load.py service

# Whether the search finds better graphs than its peers; ten minutes or so.
benchmarks-search: $(VENV)/.installed-test
	mkdir -p runs
	rm -f runs/search_quality.json
	$(BIN)/python benchmarks/search_quality.py runs/search_quality.json

# Both engines beside plain loops, half an hour; on a GPU: python benchmarks/gpu.py FOLDER.
benchmarks-training: $(VENV)/.installed-test
	mkdir -p runs
	$(BIN)/python benchmarks/training.py runs/training.json

# Wheels for a machine without internet, by its Python (deploy/README.md): this package, its
# requirements and those of EXTRAS, without the files of WITHOUT. The machine brings PyTorch.
offline: | $(VENV)/bin/python
	@test -n "$(filter 3.11 3.12,$(PYTHON))" \
	  || { echo "make: for which Python? make offline PYTHON=3.12, or 3.11"; exit 1; }
	rm -rf build/lib $(OFFLINE)/*.whl  # A wheel would have files in it that are gone.
	$(PIP) wheel --quiet --no-deps --wheel-dir $(OFFLINE) .
	set -- $(OFFLINE)/aiperf_hpc-*.whl && $(PIP) download --quiet --only-binary=:all: \
	  --python-version $(PYTHON) --dest $(OFFLINE) --constraint $(CONSTRAINTS) "$$1$(if $(EXTRAS),[$(EXTRAS)])"
	cd $(OFFLINE) && rm -f $(addsuffix -*.whl,$(WITHOUT))
	@du -sh $(OFFLINE)

# A real SLURM for the tests in tests/slurm, which start a cluster of their own. Installing
# Debian's packages starts nothing. Where it cannot be done, those tests say why they do not run.
slurm:
	@PATH="$$PATH:/usr/sbin:/sbin"; \
	missing=; for p in slurmctld slurmd munged sbatch srun; do \
	  command -v $$p >/dev/null || missing=$$p; \
	done; \
	ldconfig -p | grep -q 'libpmix[.]so ' || missing=libpmix.so; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends $(SLURM) \
	    || echo "make: SLURM could not be installed"; \
	else echo "make: no SLURM, and no root or apt-get to install it: apt-get install $(SLURM)"; \
	fi

# The run directory's rules on real NFS, in a guest with a kernel of its own (user-mode-linux): ten
# minutes, and one CPU. `make test` has the shortest of these tests.
nfs: $(VENV)/.installed-test nfs-packages
	$(BIN)/python -m pytest tests/nfs -m ''

# One after the other, for dpkg is locked.
packages:
	@$(MAKE) --no-print-directory slurm
	@$(MAKE) --no-print-directory nfs-packages

nfs-packages:
	@PATH="$$PATH:/usr/sbin:/sbin"; \
	missing=; for p in linux.uml rpc.nfsd mount.nfs rpcbind insmod ip mkfs.ext4; do \
	  command -v $$p >/dev/null || missing=$$p; \
	done; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends $(NFS) \
	    || echo "make: what serves NFS in a guest could not be installed"; \
	else echo "make: no NFS in a guest, and no root or apt-get to install it: apt-get install $(NFS)"; \
	fi

# The pages as Chromium draws them, on a phone and on a desk, the live one while its run lasts, and
# what axe finds in them: three minutes. axe comes by npm into ~/.cache/aiperf-hpc-tests.
browser: $(VENV)/.installed-test browser-packages
	$(BIN)/python -m pytest tests/browser -m ''

# docs/report.png, of a quick start.
screenshots: $(VENV)/.installed-test browser-packages
	$(BIN)/aiperf start --nodes 2 --hours 0.05 --config quickstart --launcher local --yes --run-dir build/quickstart
	$(BIN)/python -m tests.browser.screenshots build/quickstart docs

browser-packages:
	@missing=; command -v npm >/dev/null || missing="npm"; \
	command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
	  || command -v google-chrome >/dev/null || missing="chromium $$missing"; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends $$missing \
	    || echo "make: $$missing could not be installed"; \
	else echo "make: no $$missing, and no root or apt-get to install it: apt-get install $$missing"; \
	fi

$(VENV)/bin/python:
	@$(INTERPRETER) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' \
	  || { echo "make: Python 3.11 or 3.12 is needed; name one with make PYTHON=..."; exit 1; }
	@$(INTERPRETER) -c 'import ensurepip' \
	  || { echo "make: Python has no venv; apt-get install python3-venv"; exit 1; }
	$(INTERPRETER) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	@echo "installing 1.8 GB of packages, which takes some minutes"
	$(PIP) install --quiet --no-compile --constraint $(CONSTRAINTS) --editable '.[cpu]'
	$(COMPILE)
	touch $@

# One pip unpacks by one core: the two packages that are half of all come beside each other.
$(VENV)/.installed-test: pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	@echo "installing 3.5 GB of packages, which takes some minutes"
	for package in tensorflow-cpu torch; do \
	  $(PIP) install --quiet --no-compile --no-deps --constraint $(CONSTRAINTS) $$package & \
	done; wait
	$(PIP) install --quiet --no-compile --constraint $(CONSTRAINTS) --editable '.[cpu,test]'
	$(COMPILE)
	touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	$(PIP) install --quiet --constraint $(CONSTRAINTS) --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
