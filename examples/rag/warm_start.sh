#!/usr/bin/env bash
# Version 1 of the policy imitates a teacher's traces: bash warm_start.sh MODEL
set -euo pipefail
model=$(realpath "${1:?usage: bash warm_start.sh MODEL}")
cd "$(dirname "$0")"
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT

ltrain up &
python teacher.py train.jsonl --port 9000 &
until curl -sf http://127.0.0.1:9000/v1/models >/dev/null; do sleep 0.5; done
ltrain serve --upstream http://127.0.0.1:9000/v1 --policy teacher &
until curl -sf http://127.0.0.1:8000/health | grep -q '"ready"'; do sleep 0.5; done

ltrain rollout train.jsonl --agent agent:solve --reward reward:score --policy teacher \
  --run rag-teacher --python ../../.venv-examples/bin/python
ltrain sft warm_start.toml --model "$model"
