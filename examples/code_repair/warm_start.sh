#!/usr/bin/env bash
# Version 1 of a policy imitates a careless teacher:
#     bash warm_start.sh MODEL                for mini-swe-agent
#     AGENT=codex bash warm_start.sh MODEL    for Codex
set -euo pipefail
model=$(realpath "${1:?usage: [AGENT=codex] bash warm_start.sh MODEL}")
agent=${AGENT:-mini}
cd "$(dirname "$0")"
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT

ltrain up &
python teacher.py --port 9000 &
until curl -sf http://127.0.0.1:9000/v1/models >/dev/null; do kill -0 $!; sleep 0.5; done
ltrain serve --upstream http://127.0.0.1:9000/v1 --policy teacher &
until curl -sf http://127.0.0.1:8000/health | grep -q '"ready"'; do kill -0 $!; sleep 0.5; done

ltrain rollout train.jsonl --reward reward:score --policy teacher --run "teacher-$agent" \
  --rollouts-per-task 2 --workers 3 --sandbox bubblewrap --workspace 'repositories/{id}' --visible config \
  --visible ../../.venv-pyclients --visible ../../.venv-clients -- sh solve.sh "$agent"
ltrain sft "warm_start_$agent.toml" --model "$model"
