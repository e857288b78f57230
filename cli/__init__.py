"""The command line: ``aiperf COMMAND``, a file for each group of commands. They are thin.

Exit status: 0 done; 1 a run or a verification failed; 2 the command cannot be carried out as
given, and nothing was started; 130 interrupted.
"""

from aiperf_hpc.cli.program import main

__all__ = ["main"]
