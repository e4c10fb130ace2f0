# Runs as root after a job: ends what is left of it, and removes its groups. Where that fails Slurm drains the node.
set -u
case ${SLURM_JOB_ID:-} in '' | *[!0-9]*) exit 0 ;; esac
[ -e "$jobs/$SLURM_JOB_ID" ] || exit 0
end_processes "$SLURM_JOB_ID" && remove_groups "$SLURM_JOB_ID"
