"""Rooflines of AIPerf runs: achieved and attainable rate of each architecture, and its limit.

Williams, Waterman and Patterson 2009 ("Roofline: an insightful visual performance model", CACM
52(4)) bound the rate of a kernel by the machine's peak and by its memory bandwidth times the
kernel's operations per byte. MLPerf HPC (Farrell et al. 2021, outlook) extends the model to the
network and to storage, each with its own intensity. Every bound assumes that data movement and
computation of a workload overlap completely.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from aiperf_hpc.analysis.metric import NotMeasuredError, measured_each
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.readers.run_records import RunWork, work_of
from aiperf_hpc.analysis.training_log import Entry
from aiperf_hpc.errors import AIPerfError, UsageError
from aiperf_hpc.formatting import percent, si
from aiperf_hpc.grouping import grouped
from aiperf_hpc.ops_counter.memory import FULL, traffic
from aiperf_hpc.results.table import NONE, Table, optional, reasons
from aiperf_hpc.run.history import Trial
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.peaks import Peaks
from aiperf_hpc.trial import TimePhase, Value

COMPUTE, MEMORY, NETWORK, STORAGE = "compute", "memory", "network", "storage"
MOST_ARCHITECTURES = 200
"""Maximum number of characterized architectures per run, most operations first."""
BRIEF = 8
"""Maximum number of architectures shown on a terminal."""


class Ceilings(Value):
    """Measured peaks of one worker's part of its machine."""

    fraction: float
    """Fraction of the machine's rates: its cores of the measured ones, or a whole accelerator."""
    compute: dict[str, float]
    """Operations per second by precision: the best of products and convolutions."""
    memory: float | None
    """Bytes per second."""
    network: float | None
    """Bytes of a reduced tensor per second, independent of the traffic of the back end."""
    storage: float | None
    """Bytes read per second."""

    @property
    def bandwidths(self) -> dict[str, float]:
        """Known bandwidths by the kind of bytes."""
        rates = {MEMORY: self.memory, NETWORK: self.network, STORAGE: self.storage}
        return {kind: rate for kind, rate in rates.items() if rate is not None}


class Attained(Value):
    """Achieved rate under the roof for one model of memory traffic."""

    intensity: float
    """Operations per byte of memory traffic."""
    attainable: float | None
    """Operations per second."""
    bound: str | None
    """Limiting resource: ``compute``, ``memory``, ``network`` or ``storage``."""
    efficiency: float | None
    """Achieved over attainable rate. Above 1 if caches avoid traffic that the model counts."""


class Architecture(Value):
    """One network in one precision, per worker."""

    graph: str
    precision: str
    trials: int
    samples: int
    """Training samples of all workers."""
    parameters: int
    operations: int
    """Counted operations of these samples, of all workers."""
    achieved: float
    """Operations per second during training."""
    peak_fraction: float | None
    separate: Attained
    """Result with separate layers: every tensor is written, and read again for each use."""
    fused: Attained
    """Result with elementwise operations fused: minimum traffic without caches."""
    network_intensity: float | None
    """Operations per byte reduced over ranks; None for one rank."""
    io_intensity: float | None
    """Operations per byte of samples."""

    def intensities(self, kind: str) -> tuple[float | None, float | None]:
        """Return operations per byte of a kind, for separate and for fused layers."""
        if kind == MEMORY:
            return self.separate.intensity, self.fused.intensity
        return ((self.network_intensity if kind == NETWORK else self.io_intensity),) * 2


class Characterization(Value):
    """Bytes per second of one worker: a row of MLPerf HPC's characterization of its benchmarks."""

    memory: float
    """Memory traffic during training, by the model of separate layers."""
    memory_fused: float
    network: float | None
    """Reduced gradients during training; None for one rank."""
    io: float | None
    """Samples of training and validation, over the time of training, evaluation and waiting for
    data."""
    io_source: str | None
    """Kind of sample bytes: ``files``, or ``tensors`` as used in training."""


class RunRoofline(Value):
    """One run under its machine's roofline."""

    entry: str
    engine: str
    workers: int
    cores: int
    """Cores per worker."""
    accelerator: str | None
    peaks: str | None
    """Path of the machine's peaks file."""
    ceilings: Ceilings | None
    architectures: tuple[Architecture, ...]
    """Architectures, most operations first."""
    omitted: int
    """Number of other architectures."""
    worker: Characterization
    notes: tuple[str, ...]
    """Notes on missing data and limitations."""


class Rooflines(Value):
    """All runs under their rooflines."""

    runs: tuple[RunRoofline, ...]
    missing: dict[str, str]
    """Reason why each of the other entries has no roofline."""


def attainable(peak: float, bounds: Mapping[str, float]) -> tuple[float, str]:
    """Return the attainable rate and its limit: ``compute`` or the name of a bound.

    Args:
        peak: peak rate, operations per second.
        bounds: intensity x bandwidth of each kind of bytes, operations per second.
    """
    rates = {COMPUTE: peak, **bounds}
    bound = min(rates, key=rates.__getitem__)
    return rates[bound], bound


def steps_of(samples: int, batch_size: int, epoch_samples: int) -> int:
    """Return the steps for a number of samples; the last batch of an epoch may be smaller."""
    epochs, rest = divmod(samples, epoch_samples)
    return epochs * -(-epoch_samples // batch_size) + -(-rest // batch_size)


def rooflines(entries: Sequence[Entry], options: Options) -> Rooflines:
    """Put every run under the roofline of its machine, from its records and ``peaks.json``.

    Raises:
        NotMeasuredError: no entry is an AIPerf run with the required data.
        UsageError: the user's peaks file is invalid.
    """
    named = options.peaks
    given = None if named is None else (named, Peaks.read(named))
    runs, missing = measured_each(
        entries,
        lambda entry: _roofline(entry, given),
        errors=AIPerfError,
        none="there is no entry",
    )
    return Rooflines(runs=tuple(runs), missing=missing)


_PeaksFile = tuple[Path, Peaks]
"""Path of a peaks file and its peaks."""


class _Traffic(NamedTuple):
    """Bytes moved by one worker with one architecture, and the elapsed time."""

    separate: float
    fused: float
    reduced: float
    seconds: float


def _roofline(entry: Entry, given: _PeaksFile | None) -> RunRoofline:
    if entry.format != "aiperf":
        raise NotMeasuredError(
            "its logs have no graphs and no operations: only AIPerf-HPC's own runs have them"
        )
    work = work_of(Path(entry.path))
    notes, machine = list(work.problems), work.started.machine
    path, peaks = given or _peaks_of_run(entry, notes) or (None, None)
    ceilings = None if peaks is None else _ceilings(work, peaks, notes)
    groups = _groups(work.trials)
    found, lost = measured_each(
        groups[:MOST_ARCHITECTURES],
        lambda group: _architecture(work, *group[0], group[1], ceilings),
        lambda group: group[0][0],
    )
    notes += lost.values()
    if not found:
        raise NotMeasuredError(notes[-1])
    return RunRoofline(
        entry=entry.name,
        engine=work.started.engine,
        workers=work.workers,
        cores=len(machine.cores),
        accelerator=next(iter(machine.accelerators), None),
        peaks=None if path is None else str(path),
        ceilings=ceilings,
        architectures=tuple(architecture for architecture, _ in found),
        omitted=len(groups) - len(found),
        worker=_characterization(work, [moved for _, moved in found]),
        notes=tuple(dict.fromkeys(notes)),
    )


def _groups(trials: Sequence[Trial]) -> list[tuple[tuple[str, str], list[Trial]]]:
    """Return trials by graph hash and precision, most operations first."""
    found = grouped(((t.started.graph, t.started.hyperparameters.precision), t) for t in trials)
    return sorted(found.items(), key=lambda item: -_operations(item[1]))


def _operations(trials: Sequence[Trial]) -> int:
    """Return the counted operations of all training samples."""
    return sum(trial.train_samples * trial.started.train_operations for trial in trials)


def _peaks_of_run(entry: Entry, notes: list[str]) -> _PeaksFile | None:
    """Return the peaks in a run's folder, or a note if there are none."""
    path = RunPaths(Path(entry.path)).peaks
    if not path.exists():
        notes.append(
            f"no peaks were measured: `aiperf peaks --out {entry.path}` on an idle machine, or "
            "--peaks FILE"
        )
        return None
    try:
        return path, Peaks.read(path)
    except UsageError as error:
        notes.append(str(error))
        return None


def _ceilings(work: RunWork, peaks: Peaks, notes: list[str]) -> Ceilings:
    """Return the peaks of a worker's part of the machine, and note those from elsewhere."""
    machine, own_engine = work.started.machine, work.started.engine
    on_accelerator = bool(machine.accelerators)
    if peaks.host != machine.host or peaks.cpu != machine.cpu:
        notes.append(
            f"the peaks are of {peaks.host} ({peaks.cpu}), the run was on {machine.host} "
            f"({machine.cpu})"
        )
    if peaks.busy:
        notes.append(f"peaks: {peaks.busy}")
    share = 1.0 if on_accelerator else min(1.0, len(machine.cores) / peaks.cores)
    engines = {sweep.engine for sweep in peaks.sweeps}
    engine = own_engine if own_engine in engines or not engines else min(engines)
    if engine != own_engine:
        notes.append(f"the peaks are of engine {engine}, the run used {own_engine}")
    compute: dict[str, float] = {}
    products = list(peaks.products(engine, accelerator=on_accelerator))
    if rising := dict.fromkeys(sweep.precision for sweep in products if sweep.rising):
        named = ", ".join(rising)
        notes.append(
            f"peaks: the rate was still rising at the largest size that was measured, for {named}"
        )
    for sweep in products:
        best = share * max(reading.best for reading in sweep.readings)
        compute[sweep.precision] = max(best, compute.get(sweep.precision, 0.0))
    if work.tf32 and "tf32" in compute:
        compute["fp32"] = max(compute["tf32"], compute.get("fp32", 0.0))
    sweeps = peaks.memory(engine, accelerator=on_accelerator)
    memory = max((share * r.best for sweep in sweeps for r in sweep.readings), default=None)
    if memory is None:
        notes.append("the peaks have no bandwidth for this run's type of device")
    return Ceilings(
        fraction=share,
        compute=compute,
        memory=memory,
        network=_network(work, peaks, notes),
        storage=_storage(work, peaks, notes),
    )


def _network(work: RunWork, peaks: Peaks, notes: list[str]) -> float | None:
    """Return the bandwidth of the run's back end, or None for one rank or if unknown."""
    if work.ranks == 1:
        notes.append("network: one worker per replica has no all-reduce")
        return None
    if len(set(work.started.hosts)) > 1:
        notes.append("network: the peaks are of one host, the ranks were on several")
        return None
    collective = work.view.manifest.config.replica.collective
    on_device = work.started.machine.accelerators and collective != "mpi"
    memory = "accelerator" if on_device else "cpu"
    wanted = (collective, memory, "float32")
    found = [a for a in peaks.allreduce if (a.collective, a.memory, a.dtype) == wanted]
    if not found:
        notes.append(f"network: the peaks have no all-reduce by {collective} ({memory})")
        return None
    nearest = min(found, key=lambda a: abs(a.ranks - work.ranks))
    if nearest.ranks != work.ranks:
        notes.append(f"network: the peak is of {nearest.ranks} ranks, the run had {work.ranks}")
    return nearest.reading.best


def _storage(work: RunWork, peaks: Peaks, notes: list[str]) -> float | None:
    """Return a worker's fraction of the read rate, or None if training does not read."""
    if work.from_storage:
        notes.append(f"storage: {work.from_storage}, and is not read while training")
        return None
    if peaks.storage is None:
        notes.append("storage: the peaks have no read rate")
        return None
    if peaks.storage.cache == "in use":
        notes.append("storage: the page cache was in use while its peak was measured")
    if work.sample is not None and work.sample.of == "tensors":
        notes.append("storage: by the bytes of tensors, since no record has those of files")
    best = max(reading.best for reading in peaks.storage.readings)
    return best / work.workers_on_host


def _architecture(
    work: RunWork,
    graph_hash: str,
    precision: str,
    trials: Sequence[Trial],
    ceilings: Ceilings | None,
) -> tuple[Architecture, _Traffic]:
    graph, ranks = work.graph(graph_hash), work.ranks
    used = [trial.started.hyperparameters for trial in trials]
    steps = [
        steps_of(trial.train_samples, each.batch_size, work.dataset.train_samples)
        for trial, each in zip(trials, used, strict=True)
    ]

    def moved(fused: bool) -> float:
        """Return the bytes moved by a worker: its part of the samples, and the weights per step."""
        kinds = {o: traffic(graph, precision, o, fused=fused) for o in {u.optimizer for u in used}}
        return sum(
            kinds[each.optimizer].training(trial.train_samples / ranks, count)
            for trial, each, count in zip(trials, used, steps, strict=True)
        )

    one = _Traffic(
        separate=moved(False),
        fused=moved(True),
        reduced=FULL * graph.parameter_count * sum(steps) if ranks > 1 else 0.0,
        seconds=sum(trial.seconds[TimePhase.TRAIN] for trial in trials),
    )
    operations = _operations(trials)
    samples = sum(trial.train_samples for trial in trials)
    read = 0.0 if work.sample is None else work.sample.bytes * samples / ranks
    others = {
        kind: operations / ranks / count if count else None
        for kind, count in ((NETWORK, one.reduced), (STORAGE, read))
    }
    achieved = operations / ranks / one.seconds
    peak = None if ceilings is None else ceilings.compute.get(precision)
    separate, fused = (
        _attained(achieved, peak, ceilings, {MEMORY: operations / ranks / count, **others})
        for count in (one.separate, one.fused)
    )
    found = Architecture(
        graph=graph_hash,
        precision=precision,
        trials=len(trials),
        samples=samples,
        parameters=graph.parameter_count,
        operations=operations,
        achieved=achieved,
        peak_fraction=None if peak is None else achieved / peak,
        separate=separate,
        fused=fused,
        network_intensity=others[NETWORK],
        io_intensity=others[STORAGE],
    )
    return found, one


def _attained(
    achieved: float,
    peak: float | None,
    ceilings: Ceilings | None,
    intensities: Mapping[str, float | None],
) -> Attained:
    memory = intensities[MEMORY] or 0.0
    if peak is None or ceilings is None or ceilings.memory is None:
        return Attained(intensity=memory, attainable=None, bound=None, efficiency=None)
    rates = ceilings.bandwidths
    known = ((kind, each) for kind, each in intensities.items() if each and kind in rates)
    roof, bound = attainable(peak, {kind: each * rates[kind] for kind, each in known})
    return Attained(intensity=memory, attainable=roof, bound=bound, efficiency=achieved / roof)


def _characterization(work: RunWork, moved: Sequence[_Traffic]) -> Characterization:
    seconds = sum(one.seconds for one in moved)
    io = None
    if work.sample is not None:
        phases = (TimePhase.TRAIN, TimePhase.EVALUATE, TimePhase.DATA)
        samples = sum(t.train_samples + t.validation_samples for t in work.trials) / work.ranks
        reading = sum(trial.seconds.get(phase, 0.0) for trial in work.trials for phase in phases)
        io = samples * work.sample.bytes / reading
    return Characterization(
        memory=sum(one.separate for one in moved) / seconds,
        memory_fused=sum(one.fused for one in moved) / seconds,
        network=sum(one.reduced for one in moved) / seconds if work.ranks > 1 else None,
        io=io,
        io_source=None if work.sample is None else work.sample.of,
    )


def tables(found: Rooflines) -> Iterator[Table]:
    """Yield the achieved and attainable rates of each network, and each worker's traffic."""
    yield from map(_table, found.runs)
    yield _characterizations(found.runs)
    yield Table(missing=tuple(reasons(found.missing)))


def _table(run: RunRoofline) -> Table:
    columns = (
        "network", "precision", "achieved", "% of peak", "operations/B", "attainable",
        "% of attainable", "bound by",
    )  # fmt: skip
    device = run.accelerator or f"{run.cores} core{'s' * (run.cores > 1)}"
    ceilings = () if run.ceilings is None else (_ceilings_note(run.ceilings),)
    more = (f"and {run.omitted:,} more networks",) * bool(run.omitted)
    return Table(
        columns,
        tuple(map(_cells, run.architectures)),
        title=f"{run.entry}: {run.workers} worker{'s' * (run.workers > 1)} of {device}, "
        f"{run.engine}; from separate to fused layers",
        notes=(*more, *ceilings, *run.notes),
        brief=BRIEF,
    )


def _cells(one: Architecture) -> tuple[str, ...]:
    """Return a row; the ends of a range are the values for separate and for fused layers."""
    low, high = one.separate, one.fused
    roofs, shares, bounds = NONE, NONE, NONE
    if low.attainable is not None and high.attainable is not None:
        roofs = _range(si(low.attainable, "OPS"), si(high.attainable, "OPS"))
        shares = _range(percent(high.efficiency, 1), percent(low.efficiency, 1))
        bounds = _range(str(low.bound), str(high.bound))
    intensities = _range(f"{low.intensity:.3g}", f"{high.intensity:.3g}")
    return (
        one.graph[:8], one.precision, si(one.achieved, "OPS"),
        percent(one.peak_fraction, 1), intensities, roofs, shares, bounds,
    )  # fmt: skip


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _ceilings_note(ceilings: Ceilings) -> str:
    parts = [f"{name} {si(rate, 'OPS')}" for name, rate in ceilings.compute.items()]
    parts += [f"{name} {si(rate, 'B/s')}" for name, rate in ceilings.bandwidths.items()]
    return f"ceilings of a worker: {', '.join(parts)}"


def _characterizations(runs: Sequence[RunRoofline]) -> Table:
    columns = ("run", "memory", "memory, fused", "network", "input", "input format")
    rows = tuple(
        (
            run.entry,
            *(
                optional(lambda rate: si(rate, "B/s"), rate)
                for rate in (
                    run.worker.memory, run.worker.memory_fused, run.worker.network, run.worker.io
                )
            ),
            run.worker.io_source or "",
        )
        for run in runs
    )  # fmt: skip
    return Table(columns, rows, "Data rates of one worker (MLPerf HPC characterization)")
