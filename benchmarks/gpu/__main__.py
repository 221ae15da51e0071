"""Check a GPU: numbers against a CPU, tokens a second, weights, memory; a table and JSON.

With `--device cpu --quick`, the same stages run with a tiny model on a machine without a GPU.
"""

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path

from benchmarks.gpu.stage import STAGES, Check, find_stage

from ltrain_train.gpu import is_usable

MODEL = Path(".ltrain/models/smollm2")
OUT = Path(".ltrain/gpu-check")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__)
    names = ", ".join(stage.name for stage in STAGES)
    parser.add_argument("stages", nargs="*", help=f"default: all: {names}")
    parser.add_argument("--skip", nargs="*", default=[], metavar="STAGE", help="leave these out")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="a tiny model and few tokens")
    parser.add_argument("--model", type=Path, default=MODEL, help="SmolLM2-135M-Instruct")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of result.json and logs")
    parser.add_argument("--rows-of", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def write_rows(options: argparse.Namespace) -> None:
    """Run a stage in this process, and append its rows to its file."""
    stage = find_stage(options.rows_of)
    with (
        tempfile.TemporaryDirectory(prefix="lg-") as folder,
        (options.out / f"{stage.name}.jsonl").open("a") as file,
    ):
        model = options.model.absolute()
        check = Check(options.device, options.quick, model, Path(folder))
        for row in stage.rows(check):
            print(json.dumps(row.encode()), file=file, flush=True)


def run(options: argparse.Namespace) -> bool:
    """Run the stages, print the table, and write the JSON; return whether each bar is met."""
    from benchmarks.gpu.report import describe, print_table
    from benchmarks.gpu.runner import run_stages

    if options.device == "cuda" and not is_usable():
        raise SystemExit(
            "There is no GPU here that torch can use; `ltrain doctor` says why. To run the same "
            "stages without a GPU: python -m benchmarks.gpu --device cpu --quick"
        )
    chosen = [find_stage(name) for name in options.stages] or STAGES
    skipped = [find_stage(name) for name in options.skip]
    passed = ["--device", options.device, "--model", str(options.model)]
    passed += ["--quick"] if options.quick else []
    stages = [stage for stage in chosen if stage not in skipped]
    results = run_stages(stages, passed, options.out, lambda line: print(line, file=sys.stderr))
    described = describe(results, options.device)
    (options.out / "result.json").write_text(json.dumps(described, indent=1))
    print_table(results)
    print(json.dumps(described | {"stages": [], "result": str(options.out / "result.json")}))
    return not described["value"]


def main() -> None:
    options = parse()
    if options.rows_of:
        write_rows(options)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the stage, too
        raise SystemExit(not run(options))


if __name__ == "__main__":
    main()
