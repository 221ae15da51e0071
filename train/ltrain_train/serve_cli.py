"""The command `ltrain serve`."""

from pathlib import Path
from typing import Annotated

import typer

from ltrain_collector.command_options import ServerOptions, with_options
from ltrain_instrument import settings
from ltrain_instrument.allow import UnsupportedTools
from ltrain_train.eval_cli import PassThrough
from ltrain_transforms.artifacts import Engine, Publish

app = typer.Typer()


@app.command(cls=PassThrough)
@with_options
def serve(
    context: typer.Context,
    server: ServerOptions,
    model: Annotated[
        Path | None, typer.Argument(help="Hugging Face model directory: version 0 of a new policy.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of the policy, which clients use as the model name; default: policy. Repeat "
            "for more: those with the same weights share a server, as its adapters."
        ),
    ] = None,
    on: Annotated[
        Engine,
        typer.Option(
            help="The server that samples: vllm on this machine, or tinker: a server of the Tinker "
            "API, with the key in TINKER_API_KEY."
        ),
    ] = "vllm",
    base_url: Annotated[
        str | None,
        typer.Option(
            help="With --on tinker: URL of the server; default: that of Thinking Machines."
        ),
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option(
            help="With --on tinker: name of the base model there; default: that of tinker.json in "
            "the model's folder."
        ),
    ] = None,
    publish: Annotated[
        Publish,
        typer.Option(
            help="What a learner publishes of LoRA adapters: adapter or merged (weights); auto: "
            "what a trial at the start shows, and merged for a vLLM on a CPU."
        ),
    ] = "auto",
    lora_rank: Annotated[
        int,
        typer.Option(min=0, help="Largest rank of adapters; 0: only current versions have some."),
    ] = 0,
    max_adapters: Annotated[
        int, typer.Option(min=1, help="Adapters of each policy that the server holds at most.")
    ] = 5,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port of the gateway; 0: any free port; default: that of the running `ltrain up "
            "--port-base`, else 8000.",
        ),
    ] = None,
    upstream: Annotated[
        list[str] | None,
        typer.Option(
            help="URL of a running vLLM to use instead of starting one; for a policy without a "
            "version, of any OpenAI-compatible server, whose calls are recorded and not trained. "
            "POLICY=URL names that of one policy; repeat for more."
        ),
    ] = None,
    replica: Annotated[
        list[str] | None,
        typer.Option(
            help="URL of a vLLM behind --upstream, which is a router then: versions are loaded "
            "into each; repeat for more."
        ),
    ] = None,
    upstream_key_env: Annotated[
        str | None,
        typer.Option(help="Environment variable with the key of --upstream, e.g. OPENAI_API_KEY."),
    ] = None,
    route: Annotated[
        list[str] | None,
        typer.Option(
            help="Another model that agents call, as MODEL=URL, or as a JSON object with the keys "
            "of a recipe's serve.route; repeat for more."
        ),
    ] = None,
    unsupported_tools: Annotated[
        UnsupportedTools,
        typer.Option(
            help="Tools of a request that only a provider's servers run, such as web search: drop "
            "leaves them out and names them in the span, refuse answers with status 400."
        ),
    ] = "drop",
    continue_tokens: Annotated[
        bool,
        typer.Option(
            "--continue-tokens",
            help="Let a call of an attempt that continues an earlier one begin with the ids that "
            "the policy read and sampled there; the chat template renders only the new messages.",
        ),
    ] = False,
    responses_state: Annotated[
        bool,
        typer.Option(
            "--responses-state",
            help="Keep the responses of /v1/responses for an hour, at most 256 MiB of memory, so "
            "that a request can name one as its previous_response_id.",
        ),
    ] = False,
    dtype: Annotated[
        str,
        typer.Option(help="auto, bfloat16, float32 or float16; auto: what this machine runs fast."),
    ] = "auto",
    max_model_len: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum tokens of prompt and response together; default: as many as the model "
            "allows and the memory holds.",
        ),
    ] = None,
    max_num_seqs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum calls in one batch; default: 64 on a CPU, and vLLM's own on a GPU."
        ),
    ] = None,
    gpus: Annotated[
        str,
        typer.Option(
            help="GPUs of vLLM, as in CUDA_VISIBLE_DEVICES, each with a replica of the weights; "
            "default: one GPU."
        ),
    ] = "",
    kv_cache_gib: Annotated[
        int, typer.Option(min=1, help="GiB of memory for the KV cache on a CPU.")
    ] = 1,
) -> None:
    """Start the gateway and vLLM, or use a running vLLM; ctrl-C stops what was started.

    Arguments after -- are passed on to vLLM; with --on tinker they may be --tool-call-parser NAME
    and --chat-template FILE.

    Example: ltrain serve .ltrain/models/smollm2 -- --max-num-batched-tokens 4096
    """
    from ltrain_instrument.addresses import GATEWAY, find_port
    from ltrain_train.gateway import (
        ADAPTERS_ONLY,
        AdapterOptions,
        ServeOptions,
        TinkerOptions,
        VllmOptions,
    )
    from ltrain_train.gateway import serve as serve_until_stopped
    from ltrain_train.policy import VLLM_DTYPES, fast_dtype

    if replica and len(upstream or ()) != 1:
        raise typer.BadParameter("--replica names servers behind a router: --upstream is its URL.")
    if on == "tinker" and (upstream or publish == "merged"):
        raise typer.BadParameter("--on tinker takes neither --upstream nor --publish merged.")
    extra = tuple(context.args)
    tinker = TinkerOptions(
        base_url=base_url, base_model=base_model, max_model_len=max_model_len, extra=extra
    )
    home = settings.HOME.read()
    serve_until_stopped(
        ServeOptions(
            home=home,
            policies=tuple(dict.fromkeys(policy or ("policy",))),
            model=model,
            adapters=AdapterOptions(
                publish=publish,
                lora_rank=lora_rank,
                max_adapters=max_adapters,
                required=ADAPTERS_ONLY if on == "tinker" else "",
            ),
            port=find_port(home, GATEWAY, 8000) if port is None else port,
            host=server.host,
            tls=server.tls,
            upstreams=tuple(upstream or ()),
            replicas=tuple(replica or ()),
            upstream_key_env=upstream_key_env,
            vllm=VllmOptions(
                dtype=VLLM_DTYPES[fast_dtype()] if dtype == "auto" else dtype,
                max_model_len=max_model_len,
                max_num_seqs=max_num_seqs,
                kv_cache_gib=kv_cache_gib,
                gpus=gpus,
                extra=extra,
            ),
            tinker=tinker if on == "tinker" else None,
            unsupported_tools=unsupported_tools,
            routes=tuple(route or ()),
            continue_tokens=continue_tokens,
            responses_state=responses_state,
        ),
        lambda line: typer.echo(f"ltrain: {line}"),
    )
