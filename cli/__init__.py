"""The command line: ``aiperf COMMAND``, with one file per group of thin commands.

Exit status: 0 success; 1 a run or a verification failed; 2 the command is invalid or impossible,
and nothing was started; 130 interrupted.
"""

from aiperf_hpc.cli.program import main

__all__ = ["main"]
