"""``run.yaml``: what a run was asked to do, by which versions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import yaml
from pydantic import Field, ValidationError, field_validator

from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import RunDirectoryError, StorageError, UsageError
from aiperf_hpc.host.schedulers import launcher_names
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.run.storage import Retry, no_retry
from aiperf_hpc.system.site import SiteDescription
from aiperf_hpc.trial import DatasetInfo, Value
from aiperf_hpc.untrusted.bounds import MOST_HOURS, MOST_NODES, first_fault
from aiperf_hpc.untrusted.files import MOST_YAML_BYTES, bytes_inside, parsed_yaml

RULES = 2
"""The version of the rules that runs of this version are judged by; 1 was without divisions."""
_UNSAID = (
    "name", "site", "command", "release_changes", "division", "nodes_max", "devices", "rules",
    "start_when",
)  # fmt: skip
"""What is in the file only where it is not the default."""
if TYPE_CHECKING:
    RequestedLauncher = str
else:
    RequestedLauncher = Literal[launcher_names()]
    """The launchers that a user may request."""


class RunManifest(Value):
    """Written once, before anything is started."""

    schema_version: Literal[1] = 1
    run_id: str
    """The run's identifier, which no other run has."""
    name: str = ""
    """The run's name, of its folder; in the file only where it is not the identifier."""
    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)]
    """How many nodes it begins with."""
    nodes_max: Annotated[int, Field(ge=1, le=MOST_NODES)] | None = None
    """How many it takes at most, as the scheduler gives them; in the file only where that was
    asked for."""
    hours: Annotated[float, Field(gt=0, le=MOST_HOURS, allow_inf_nan=False)]
    start_when: Literal["first", "all"] = "first"
    """Whether its clock starts with the first node, or once all replicas are ready to train; in the
    file only where it is not the first."""
    launcher: str
    cores: tuple[tuple[int, ...], ...] = ()
    """The logical CPUs of each local replica; empty where a scheduler gives them."""
    devices: tuple[str, ...] = ()
    """The accelerators of each local replica, one a rank, as ``VisibleDevices`` writes them;
    in the file only where there are any."""
    versions: dict[str, str]
    commit: str | None
    release_changes: tuple[str, ...] = ()
    """The files of the package that differ from the release of its version, and how; in the file
    only where there are any."""
    rules: Annotated[int, Field(ge=1, le=RULES)] = 1
    """The version of the benchmark's rules that it is judged by; in the file from 2 on."""
    division: Literal["closed", "open"] | None = None
    """The division that it is to be official in; in the file only where one was asked for."""
    dataset: DatasetInfo | None = None
    """What the dataset is where the run is started; every node must have the same."""
    config: RunConfig
    site: SiteDescription | None = None
    """What people said of the system; in the file only where they said something."""
    command: str = ""
    """The command that started it, as it was typed; in the file only where it is known."""

    @field_validator("config")
    @classmethod
    def _in_numbers(cls, config: RunConfig) -> RunConfig:
        """Let everything after the start of a run know how many ranks a replica has."""
        return config.settled()

    @property
    def title(self) -> str:
        """The name by which people know the run."""
        return self.name or self.run_id

    @property
    def replicas(self) -> int:
        """How many replicas the nodes make."""
        return self.nodes // self.config.replica.nodes

    @property
    def most_replicas(self) -> int:
        """How many replicas there are at most, unless more nodes are asked for later."""
        return (self.nodes_max or self.nodes) // self.config.replica.nodes

    @property
    def simulated(self) -> bool:
        """Whether its records tell the time of a simulation."""
        return self.launcher == "simulated"

    def folders(self, paths: RunPaths) -> dict[str, Path]:
        """Return the folders whose file systems the run depends on, by what they are for."""
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
        """Read a run's manifest. Raises RunDirectoryError when this is no run directory."""
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
    why = "it has no run.yaml" if folder.is_dir() else "it is a file"
    why = why if folder.exists() else "there is no such folder"
    return RunDirectoryError(
        f"{folder} is not a run directory: {why}; `aiperf list DIR` lists the runs in a folder"
    )
