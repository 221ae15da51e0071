"""Coding agents as their users start them: a command, its files and its variables.

Texts have `$gateway`, `$collector`, `$home`, the home folder, and `$work`, the folder in which the
agent works.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from signal import SIGINT

DONE = "All is done."
"""What a client prints at the end of the plan."""


@dataclass(frozen=True)
class Session:
    """A session of a run, as the store has it."""

    agent: str
    """The agent of its LLM calls."""
    prompts: int = 0
    """Rows of the prompt, which the client writes."""
    fails: bool = False
    """Whether the client says that the command failed."""


@dataclass(frozen=True)
class Client:
    """A coding agent, what the policy answers, and what the store has of a run."""

    command: tuple[str, ...]
    """The program and its arguments; the prompt follows."""
    files: Mapping[str, str]
    """Texts by their paths in the home folder."""
    variables: Mapping[str, str]
    steps: tuple[str, ...]
    """Steps of the policy: edit a file, run a command that fails, and use two tools at once."""
    tools: tuple[tuple[str, ...], ...]
    """The names of the tools of these steps."""
    sessions: tuple[Session, ...]
    """One session; two if the client's records cannot be joined with the calls."""
    interrupted: int
    """The exit code after ctrl-C."""
    package: str
    """Its name in the lock of its environment."""
    api: str
    """The route that it calls."""
    environment: str = "clients"
    answer: str = DONE
    """The last step."""
    timed: bool = False
    """Whether its own telemetry has the times of tools."""
    cut: str | None = "This "
    """What the policy had written before ctrl-C; None: the client does not stream."""


@dataclass(frozen=True)
class Delegation:
    """A run in which an agent delegates a task to a sub-agent."""

    steps: tuple[str, ...]
    """Steps of the agent, the first of which delegates `TASK`."""
    tool: str
    """The name of the tool that delegates."""
    work: str
    """The plan of the sub-agent."""
    calls: tuple[str, ...]
    """The calls of the sub-agent."""
    agent: str
    """The name of the sub-agent."""
    place: str
    """The call around those of the sub-agent."""


TITLE = ("--title", "A title")
"""opencode asks the policy for a title otherwise."""
TASK = "Look around the folder."
"""What a sub-agent does."""
GOOGLE_SETTINGS = """
{"telemetry": {"enabled": true, "target": "local", "otlpProtocol": "http",
               "otlpEndpoint": "$collector", "logPrompts": true},
 "privacy": {"usageStatisticsEnabled": false},
 "general": {"enableAutoUpdate": false, "disableAutoUpdate": true},
 "security": {"auth": {"selectedType": "%s"}}}
"""
CODEX = """
model = "policy"
model_provider = "ltrain"
check_for_update_on_startup = false
analytics = { enabled = false }

[model_providers.ltrain]
name = "ltrain"
base_url = "$gateway/v1"
env_key = "LTRAIN_KEY"
wire_api = "responses"

[otel]
log_user_prompt = true
exporter = { otlp-http = { endpoint = "$collector/v1/logs", protocol = "binary" } }
"""
OPENCODE = """
{"provider": {"ltrain": {"npm": "@ai-sdk/openai-compatible",
                         "options": {"baseURL": "$gateway/v1", "apiKey": "none"},
                         "models": {"policy": {"name": "policy"}}}},
 "model": "ltrain/policy", "autoupdate": false, "share": "disabled", "permission": {"*": "allow"}}
"""

AIDER = """
model: openai/policy
weak-model: openai/policy
model-metadata-file: $home/models.json
edit-format: diff
test-cmd: cat nothing.txt
auto-test: true
yes-always: true
git: false
analytics-disable: true
check-update: false
show-release-notes: false
show-model-warnings: false
"""
LITELLM = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""LiteLLM downloads the prices of models otherwise."""

CLIENTS = {
    "codex": Client(
        command=(
            *("codex", "exec", "--skip-git-repo-check"),
            "--dangerously-bypass-approvals-and-sandbox",
        ),
        files={".codex/config.toml": CODEX},
        variables={"LTRAIN_KEY": "none"},
        steps=(
            "exec_command(cmd=echo hello > a.txt)",
            "exec_command(cmd=cat nothing.txt)",
            "exec_command(cmd=cat a.txt) + exec_command(cmd=wc a.txt)",
        ),
        tools=(("exec_command",), ("exec_command",), ("exec_command", "exec_command")),
        sessions=(Session("main", prompts=1),),
        interrupted=1,
        package="@openai/codex",
        api="/v1/responses",
        timed=True,
    ),
    "qwen-code": Client(
        command=("qwen", "--yolo"),
        files={".qwen/settings.json": GOOGLE_SETTINGS % "openai"},
        variables={
            "OPENAI_BASE_URL": "$gateway/v1",
            "OPENAI_API_KEY": "none",
            "OPENAI_MODEL": "policy",
        },
        steps=(
            "write_file(file_path=$work/a.txt, content=hello)",
            "run_shell_command(command=cat nothing.txt, is_background=false)",
            "read_file(file_path=$work/a.txt) + glob(pattern=*)",
        ),
        tools=(("write_file",), ("run_shell_command",), ("read_file", "glob")),
        sessions=(Session("qwen-code", prompts=2, fails=True),),
        interrupted=-SIGINT,
        package="@qwen-code/qwen-code",
        api="/v1/chat/completions",
        timed=True,
    ),
    "gemini-cli": Client(
        command=("gemini", "--skip-trust", "--yolo", "-m", "policy", "-p"),
        files={".gemini/settings.json": GOOGLE_SETTINGS % "gemini-api-key"},
        variables={"GOOGLE_GEMINI_BASE_URL": "$gateway", "GEMINI_API_KEY": "none"},
        steps=(
            "write_file(file_path=$work/a.txt, content=hello)",
            "run_shell_command(command=cat nothing.txt)",
            "read_file(file_path=$work/a.txt) + glob(pattern=*)",
        ),
        tools=(("write_file",), ("run_shell_command",), ("read_file", "glob")),
        sessions=(Session("gemini-cli", prompts=1, fails=True),),
        interrupted=0,
        package="@google/gemini-cli",
        api="/v1beta",
        timed=True,
    ),
    "opencode": Client(
        # npm runs no scripts, one of which would link the program
        command=("../opencode-linux-x64-baseline/bin/opencode", "run", *TITLE),
        files={".config/opencode/opencode.json": OPENCODE},
        variables={
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
        },
        steps=(
            "write(filePath=$work/a.txt, content=hello)",
            "bash(command=cat nothing.txt)",
            "read(filePath=$work/a.txt) + bash(command=wc a.txt)",
        ),
        tools=(("write",), ("bash",), ("read", "bash")),
        sessions=(Session("main"),),
        interrupted=-SIGINT,
        package="opencode-ai",
        api="/v1/chat/completions",
    ),
    "mini-swe-agent": Client(
        command=("mini", "--yolo", "--exit-immediately", "--model", "openai/policy", "--task"),
        files={},
        variables={
            "OPENAI_BASE_URL": "$gateway/v1",
            "OPENAI_API_KEY": "none",
            "MSWEA_CONFIGURED": "true",  # else it asks for a model
            "MSWEA_COST_TRACKING": "ignore_errors",
            **LITELLM,
        },
        steps=(
            "bash(command=echo hello > a.txt)",
            "bash(command=cat nothing.txt)",
            "bash(command=cat a.txt) + bash(command=wc a.txt)",
        ),
        tools=(("bash",), ("bash",), ("bash", "bash")),
        sessions=(Session("main"),),
        interrupted=1,
        package="mini-swe-agent",
        api="/v1/chat/completions",
        environment="pyclients",
        # it never returns the result of this command
        answer=f"bash(command=echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo {DONE})",
        cut=None,
    ),
    "aider": Client(
        command=("aider", "--message"),
        files={".aider.conf.yml": AIDER, "models.json": '{"openai/policy": {"mode": "chat"}}'},
        variables={"OPENAI_API_BASE": "$gateway/v1", "OPENAI_API_KEY": "aider", **LITELLM},
        # a file in text, and a command of the user that fails; aider itself adds three answers
        steps=("a.txt\n```\n<<<<<<< SEARCH\n=======\nhello\n>>>>>>> REPLACE\n```; Ok.; Ok.; Ok.",),
        tools=((),),
        sessions=(Session("main"),),
        interrupted=0,
        package="aider-chat",
        api="/v1/chat/completions",
        environment="pyclients",
    ),
}

DELEGATIONS = {
    "codex": Delegation(
        # the sub-agent ends with its caller
        steps=(f"multi_agent_v1__spawn_agent(message={TASK})", "exec_command(cmd=sleep 5)", DONE),
        tool="multi_agent_v1__spawn_agent",
        work="exec_command(cmd=ls); Seen.",
        calls=("llm policy", "tool exec_command", "llm policy"),
        agent="collab_spawn",
        place="tool multi_agent_v1__spawn_agent",
    ),
    "qwen-code": Delegation(
        # the sub-agent runs beside its caller, which gets a message when it has ended
        steps=(
            f"agent(description=Look, prompt={TASK}, subagent_type=general-purpose)",
            "It is started.",
            DONE,
        ),
        tool="agent",
        work="glob(pattern=*); Seen.",
        calls=("agent general-purpose", "llm policy", "tool glob", "llm policy"),
        agent="general-purpose",
        place="agent general-purpose",
    ),
    "gemini-cli": Delegation(
        steps=(f"invoke_agent(agent_name=generalist, prompt={TASK})", DONE),
        tool="invoke_agent",
        work='glob(pattern=*); complete_task(result={"response": "Seen."})',
        calls=("llm policy", "tool glob", "llm policy", "tool complete_task"),
        agent="generalist",
        place="tool invoke_agent",
    ),
    "opencode": Delegation(
        steps=(f"task(description=Look, prompt={TASK}, subagent_type=general)", DONE),
        tool="task",
        work="glob(pattern=*); Seen.",
        calls=("llm policy", "tool glob", "llm policy"),
        agent="general",
        place="tool task",
    ),
}
