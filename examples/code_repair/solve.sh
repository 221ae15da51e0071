# Runs a coding agent on the task in LTRAIN_TASK, in the attempt's copy of the repository:
#     sh solve.sh mini     mini-swe-agent
#     sh solve.sh codex    Codex
here=$PWD
environments=$here/../..
cd "$LTRAIN_WORKSPACE" || exit 1
unset PYTHONPATH # the agents' environments do not have the instrumentation
task=$(python3 -IS -c 'import json, os; print(json.loads(os.environ["LTRAIN_TASK"])["input"])')
case $1 in
mini)
  export MSWEA_CONFIGURED=true MSWEA_SILENT_STARTUP=1 LITELLM_LOCAL_MODEL_COST_MAP=True
  exec "${MINI:-$environments/.venv-pyclients/bin/mini}" --exit-immediately --output /dev/null \
    --config "$here/config/mini.yaml" --task "$task"
  ;;
codex)
  mkdir -p "$HOME/.codex"
  sed "s#BASE_URL#$OPENAI_BASE_URL#; s#MODEL#$OPENAI_MODEL#; s#FOLDER#$here#" \
    "$here/config/codex.toml" >"$HOME/.codex/config.toml"
  exec "${CODEX:-$environments/.venv-clients/node_modules/.bin/codex}" exec \
    --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox "$task" </dev/null
  ;;
esac
