#!/bin/bash
# One array element is one replica, on its nodes. `aiperf start --dry-run` prints this filled in.
# A site may put its own in place of it: slurm.template (deploy/README.md).
#SBATCH --job-name=$job_name
#SBATCH --array=0-$last_replica
#SBATCH --nodes=$nodes
#SBATCH --ntasks-per-node=$ranks_per_node
#SBATCH --time=$time_limit
# Before the time limit the replica is told to end: it finishes its step and its records.
#SBATCH --signal=TERM@$signal_seconds
# A replica whose node fails is requeued; its next attempt continues where the records end.
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=$output
$directives

set -euo pipefail
# A node that sees neither the run's records nor Python can record nothing: it says so by status.
[ -s $run_dir/run.yaml ] || exit $unseen_run_status
[ -x $python ] || exit $unseen_python_status
# exec, so that the job ends with the status of its step and never COMPLETED after a failure.
# Bound to no core within the step: the replica uses all CPUs that SLURM gives it.
exec srun --cpu-bind=none $step_options $python -m aiperf_hpc.replica $run_dir \
  --replica "r$${SLURM_ARRAY_TASK_ID}" --launch $launch
