#!/usr/bin/env bash
# One address for several `clefq serve`, on one host or many:
#
#   pip install vllm-router          # an environment of its own; no GPU needed
#   HOST=0.0.0.0 deploy/vllm_router.sh 8080 http://gpu-1:8000 http://gpu-2:8000
#
# vllm-router passes /v1/systemone on as it is. It asks every server's /health: one that starts or
# drains is left out within two seconds. A request that meets a server that has just died gets a
# 502; the release's answers have no side effects, so that clients may simply ask again.
# --dp is better than this for the GPUs of one host: it loses no request when an engine dies, and
# sends prompts to the engine with the fewest tokens to do.
set -euo pipefail
port=${1:?usage: vllm_router.sh PORT URL…}
shift
exec vllm-router --host "${HOST:-127.0.0.1}" --port "$port" --worker-urls "$@" \
  --policy round_robin \
  --health-check-endpoint /health --health-check-interval-secs 2 \
  --health-check-timeout-secs 2 --health-failure-threshold 1 --health-success-threshold 1 \
  --request-timeout-secs 300 --max-concurrent-requests 4096
