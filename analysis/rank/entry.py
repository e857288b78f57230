"""What a ranking says of one run."""

from __future__ import annotations

from aiperf_hpc.formatting import utc_text
from aiperf_hpc.ops_counter.divisions import Division
from aiperf_hpc.results.views.resources import Resources
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.results.views.telemetry import telemetry_status
from aiperf_hpc.results.views.witnesses import UNWITNESSED, witness_line, witnesses_of
from aiperf_hpc.trial import Value

NOBODY = "nobody"
UNSIGNED = "signature: nobody signed it; `aiperf sign` does"


class RankEntry(Value):
    """A verified run."""

    name: str
    """Its folder, below the one whose runs are ranked."""
    run_id: str
    system: str
    """The system's name; empty where nobody said it."""
    submitter: str
    """Who submits it; empty where nobody said it."""
    resources: Resources
    """Its replicas, hosts, accelerators and processors."""
    preset: str
    dataset: str
    started: str | None
    hours: float
    """Hours from the run's start to its end."""
    ops: float
    """The score."""
    signed_by: str
    """The key that signed it, or that nobody did."""
    witness: str = UNWITNESSED
    """Who outside saw it go on, from when to when, or that nobody did."""
    error: float | None
    regulated: float | None
    watts: float | None
    """The mean power of what was metered; None where nothing was."""
    ops_per_watt: float | None
    energy_label: str
    """measured, estimated or absent: as a run's report says of its energy."""
    division: Division | None = None
    """The division in which it is official."""
    declared: tuple[str, ...] = ()
    """The settings that are not as the closed division fixes them."""
    broken: tuple[str, ...]
    """The rules of the benchmark that it does not keep, each with the reason."""

    @classmethod
    def of(cls, view: RunView, name: str, signed_by: str = NOBODY) -> RankEntry:
        """Return the entry of a run that has been read."""
        final, config, site = view.final(), view.manifest.config, view.machine.summary().site
        telemetry = telemetry_status(view.history, view.manifest, view.until, final.ops)
        energy, judgement = telemetry.energy, view.judgement()
        unsigned = (UNSIGNED,) if signed_by == NOBODY else ()
        return cls(
            name=name,
            run_id=view.manifest.run_id,
            system="" if site is None else site.system_name,
            submitter="" if site is None else site.submitter,
            resources=view.resources(),
            preset=config.preset,
            dataset=config.dataset.name,
            started=utc_text(view.history.start_utc),
            hours=final.elapsed / 3600.0,
            ops=final.ops,
            signed_by=signed_by,
            witness=witness_line(witnesses_of(view.history), ended=True),
            error=final.error,
            regulated=final.regulated,
            watts=energy.watts,
            ops_per_watt=energy.ops_per_watt,
            energy_label=str(energy.label),
            division=None if unsigned else judgement.division,
            declared=tuple(map(str, judgement.declared)),
            broken=(*map(str, judgement.violations), *unsigned),
        )
