"""``aiperf resume``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from aiperf_hpc.cli.parameters import FinalJson, Run, SigningKey, flag, key_of, option
from aiperf_hpc.cli.primary import conduct_run, take_run
from aiperf_hpc.cli.serving import ServerSecurity, free_endpoint
from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.control.prepare import (
    require_packages,
)
from aiperf_hpc.primary.control.resume import (
    check_resumable,
    end_leftovers,
)
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.requests import Service

if TYPE_CHECKING:
    from aiperf_hpc.service.endpoint import Endpoint


@dataclass(frozen=True)
class ServeOptions:
    """Where a resumed run is served."""

    serve: Annotated[
        str | None,
        option(
            "--serve",
            "[HOST:PORT]",
            "Serve its status over REST. Default: where it was served before.",
        ),
    ] = None
    no_serve: Annotated[
        bool, flag("--no-serve", "Do not serve it, even if it was served before.")
    ] = False  # fmt: skip


def resume(
    run: Run,
    serving: ServeOptions,
    security: ServerSecurity,
    key: SigningKey = None,
    json: FinalJson = False,
) -> int:
    """Resume an interrupted run.

    The run ends at its original time, because its clock kept running. Replicas that are alive
    continue; the others are restarted.

    Examples:
      $ aiperf resume 20261121-101500-imagenet-3f2a
    """
    if serving.serve is not None and serving.no_serve:
        raise UsageError("--serve and --no-serve do not go together; leave one out")
    own = key_of(key)
    manifest, history = check_resumable(run)
    require_packages(manifest.config, manifest.launcher)
    with take_run(history, manifest, "resume") as claim:
        if history.run_ended is not None:  # By who had it since it was looked at.
            raise UsageError(f"{run}: this run has ended; see `aiperf report`")
        endpoint = _endpoint_again(serving, security, history.paths)
        end_leftovers(history)
        launch = max(len(history.run_starts), claim.number - 1)
        return conduct_run(
            manifest, history.paths, endpoint, claim, as_json=json, launch=launch, key=own
        )


def _endpoint_again(
    serving: ServeOptions, security: ServerSecurity, paths: RunPaths
) -> Endpoint | None:
    """Return where a resumed run is served: as requested, else where it was before.

    The previous address is not a request: without it, or if it is not free, the run is not served.
    """
    if serving.no_serve:
        return None
    if serving.serve is not None:
        return free_endpoint(serving.serve, security)
    try:
        before = Service.load(paths)
        if before is None:
            return None
        from aiperf_hpc.service.endpoint import Endpoint
        from aiperf_hpc.service.server import check_free

        endpoint = Endpoint(
            before.host,
            before.port,
            security.token_file or before.token_file,
            security.tls_certificate or before.certificate,
            security.tls_key or before.key,
        )
        check_free(endpoint)
    except UsageError as error:
        sys.stderr.write(f"aiperf: {error}; not served: `aiperf serve {paths.root}` does that\n")
        return None
    return endpoint
