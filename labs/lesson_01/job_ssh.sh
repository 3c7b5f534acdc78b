#!/bin/bash
# One torchrun on each machine, 4 ranks each. The folder is the same on all. Run it: bash job_ssh.sh node1 node2
per_node=${PER_NODE:-4}
common="--nnodes=$# --nproc-per-node=$per_node --master-addr=$1 --master-port=${PORT:-29400}"
node=0
started=()
for host in "$@"; do
  ssh "$host" "cd '$PWD' && '$(command -v torchrun)' $common --node-rank=$node train.py" &
  started+=("$!")
  node=$((node + 1))
done
failed=0
for job in "${started[@]}"; do
  wait "$job" || failed=1
done
exit "$failed"
