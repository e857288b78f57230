"""The manifest ``run.yaml``: the requested configuration of a run and the software versions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from aiperf_hpc.config import RunConfig
from aiperf_hpc.earlier_names import SETTINGS, renamed
from aiperf_hpc.errors import RunDirectoryError, StorageError, UsageError
from aiperf_hpc.host.schedulers import launcher_names
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.run.storage import Retry, no_retry
from aiperf_hpc.system.description import SiteDescription
from aiperf_hpc.trial import DatasetInfo, Value
from aiperf_hpc.untrusted.bounds import MOST_HOURS, MOST_NODES, first_fault
from aiperf_hpc.untrusted.files import MOST_YAML_BYTES, bytes_inside, parsed_yaml

RULES = 2
"""Version of the rules that apply to runs of this version; version 1 had no divisions."""
_UNSAID = (
    "name", "site", "command", "release_changes", "division", "nodes_max", "devices", "rules",
    "start_when",
)  # fmt: skip
"""Fields that are written only if they differ from the default."""
if TYPE_CHECKING:
    RequestedLauncher = str
else:
    RequestedLauncher = Literal[launcher_names()]
    """The launchers that a user may request."""


class RunManifest(Value):
    """The manifest of a run, written once before the start."""

    schema_version: Literal[1, 2] = 2
    """Version of the format, as of the run's records (``Record.v``)."""
    run_id: str
    """Unique identifier of the run."""
    name: str = ""
    """Name of the run, as of its folder; written only if it differs from the identifier."""
    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)]
    """Number of nodes at the start."""
    nodes_max: Annotated[int, Field(ge=1, le=MOST_NODES)] | None = None
    """Maximum number of nodes, used as the scheduler grants them; written only if requested."""
    hours: Annotated[float, Field(gt=0, le=MOST_HOURS, allow_inf_nan=False)]
    start_when: Literal["first", "all"] = "first"
    """Whether the clock starts with the first node or once all replicas are ready to train; written
    only if it is the latter."""
    launcher: str
    cores: tuple[tuple[int, ...], ...] = ()
    """Logical CPUs of each local replica; empty if a scheduler assigns them."""
    devices: tuple[str, ...] = ()
    """Accelerators of each local replica, one per rank, in the format of ``VisibleDevices``;
    written only if there are any."""
    versions: dict[str, str]
    commit: str | None
    release_changes: tuple[str, ...] = ()
    """Files of the package that differ from the release of its version, and how; written only if
    there are any."""
    rules: Annotated[int, Field(ge=1, le=RULES)] = 1
    """Version of the benchmark's rules that apply to the run; written from version 2 on."""
    division: Literal["closed", "open"] | None = None
    """Requested division; written only if one was requested."""
    dataset: DatasetInfo | None = None
    """Dataset on the host that starts the run; it must be the same on all nodes."""
    config: RunConfig
    site: SiteDescription | None = None
    """Description of the system by its users; written only if there is one."""
    command: str = ""
    """Command line that started the run; written only if it is known."""

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_version(cls, data: Any) -> Any:  # noqa: ANN401 -- as read
        if not isinstance(data, dict) or data.get("schema_version") != 1:
            return data
        return {**data, "config": renamed(data.get("config"), SETTINGS)}

    @field_validator("config")
    @classmethod
    def _in_numbers(cls, config: RunConfig) -> RunConfig:
        """Resolve the number of ranks per replica, which is fixed from the start of a run."""
        return config.settled()

    @property
    def title(self) -> str:
        """Name of the run for display."""
        return self.name or self.run_id

    @property
    def replicas(self) -> int:
        """Number of replicas on the initial nodes."""
        return self.nodes // self.config.replica.nodes

    @property
    def most_replicas(self) -> int:
        """Maximum number of replicas, unless more nodes are requested later."""
        return (self.nodes_max or self.nodes) // self.config.replica.nodes

    @property
    def earlier(self) -> bool:
        """Whether an earlier version recorded the run; it may lack what this version records."""
        return self.schema_version == 1

    @property
    def simulated(self) -> bool:
        """Whether the times of its records are simulated."""
        return self.launcher == "simulated"

    @property
    def monitored(self) -> bool:
        """Whether its processes record clocks, journal digests, their systems and studies.

        Simulations and runs of earlier versions need not; rules require them of all other runs.
        """
        return not (self.earlier or self.simulated)

    def folders(self, paths: RunPaths) -> dict[str, Path]:
        """Return the folders whose file systems the run depends on, by purpose."""
        dataset = self.config.dataset
        found = {"run": paths.root, "data": dataset.path, "cache": dataset.cache_path}
        return {use: folder for use, folder in found.items() if folder is not None}

    def save(self, paths: RunPaths) -> None:
        """Write the manifest into the run directory."""
        fields = type(self).model_fields
        unsaid = {name for name in _UNSAID if getattr(self, name) == fields[name].default}
        values = self.model_dump(mode="json", exclude=unsaid)
        text = yaml.safe_dump(values, sort_keys=False, width=100)
        write_whole(paths.manifest, text)

    @classmethod
    def load(cls, paths: RunPaths, retry: Retry = no_retry) -> RunManifest:
        """Read a run's manifest. Raises RunDirectoryError if the folder is not a run directory."""
        try:
            text = retry(lambda: _text(paths), str(paths.manifest), "read")
            return cls.model_validate(parsed_yaml(text))
        except StorageError as error:
            raise RunDirectoryError(str(error)) from None
        except ValidationError as error:
            fault = first_fault(error, "the file")
            raise RunDirectoryError(f"{paths.manifest}: {fault}") from None
        except RunDirectoryError:
            raise
        except (UsageError, UnicodeDecodeError) as error:
            raise RunDirectoryError(f"cannot read {paths.manifest}: {error}") from None


def _text(paths: RunPaths) -> str:
    try:
        return bytes_inside(paths.root, paths.manifest, MOST_YAML_BYTES).decode()
    except (FileNotFoundError, NotADirectoryError):
        raise no_run(paths.root) from None


def no_run(folder: Path) -> RunDirectoryError:
    """Return the error for a folder that is not a run directory."""
    if folder.exists():
        why = "it has no run.yaml" if folder.is_dir() else "it is a file"
        fault = f"{folder} is not a run directory: {why}"
    else:
        fault = f"there is no run {folder}"
    return RunDirectoryError(f"{fault}; `aiperf list [DIR]` lists the runs in DIR or in runs/")
