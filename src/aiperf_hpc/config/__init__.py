"""The configuration of a run: resolved once, checked once, then frozen.

Sources, later ones win: the defaults of the sections (those of Ren et al. 2021, where
it gives one), a preset or YAML file, ``--set key=value``.
"""

from aiperf_hpc.config.loading import *  # noqa: F403 -- a section is named at its class alone
from aiperf_hpc.config.run import *  # noqa: F403
from aiperf_hpc.config.search import *  # noqa: F403
from aiperf_hpc.config.sections import *  # noqa: F403
