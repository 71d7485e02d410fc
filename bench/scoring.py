"""The score of lm-evaluation-harness through the server against the same weights in transformers.

    python -m bench.scoring [MODEL] [--dtype float32 --dtype auto] [--lm-eval PYTHON]

The task is `bench/lm_eval/facts.yaml`: 40 questions with four answers, scored by the log-likelihood of each answer
behind its question. `local-completions` asks the server (`echo` with `logprobs`), `hf` runs transformers in float32 on
the dequantised weights. Without --lm-eval the harness is installed into the user's cache folder.
"""

import asyncio
import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from bench.hf_folder import write_hf_folder
from bench.servers import peer_environment, tokenline
from tokenline.models.fetch import resolve_model

TASK = "tokenline_facts"


@dataclass(frozen=True)
class Score:
    accuracy: float
    normalised: float  # by the length of the answers
    log_likelihoods: np.ndarray  # float64 [questions, answers]


def evaluate(python: Path, folder: Path, kind: str, **model_args: Any) -> Score:
    """Run the harness on the task; its files go to `folder`."""
    arguments = ",".join(f"{name}={value}" for name, value in model_args.items())
    command = [python, "-m", "lm_eval", "--model", kind, "--model_args", arguments, "--tasks", TASK, "--device", "cpu"]
    command += ["--include_path", "bench/lm_eval", "--log_samples", "--output_path", folder]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "datasets"), "OPENAI_API_KEY": "none"}
    subprocess.run(command, check=True, env={**os.environ, **offline}, stdout=subprocess.DEVNULL)
    (results,) = folder.rglob("results_*.json")
    (samples,) = folder.rglob(f"samples_{TASK}_*.jsonl")
    figures = json.loads(results.read_text())["results"][TASK]
    lines = sorted(map(json.loads, samples.read_text().splitlines()), key=lambda line: line["doc_id"])
    answers = [[float(answer[0]) for answer in line["filtered_resps"]] for line in lines]
    return Score(figures["acc,none"], figures["acc_norm,none"], np.array(answers))


async def through_the_server(python: Path, model: Path, hf_folder: Path, dtype: str, folder: Path) -> Score:
    async with tokenline(model, os.cpu_count() or 1, "--dtype", dtype) as server:
        where = {"model": await server.model(), "base_url": f"{server.url}/v1/completions", "tokenizer": hf_folder}
        return await asyncio.to_thread(
            evaluate, python, folder, "local-completions", **where, num_concurrent=4, max_length=2048
        )


def main(
    model: Annotated[str | None, typer.Argument()] = None,
    dtype: Annotated[list[str], typer.Option()] = ["float32", "auto"],  # noqa: B006
    lm_eval: Annotated[Path | None, typer.Option(help="The Python of an environment with lm_eval[hf]")] = None,
) -> None:
    path = resolve_model(model)
    python = lm_eval or peer_environment("lm-eval", "lm_eval[hf]") / "bin" / "python"
    with tempfile.TemporaryDirectory() as scratch:
        hf_folder = Path(scratch) / "hf"
        write_hf_folder(path, hf_folder, torch.float32)
        reference = evaluate(python, Path(scratch) / "reference", "hf", pretrained=hf_folder, dtype="float32")
        print("| | acc | acc_norm | same answer | log-likelihood off by: mean | most |\n|---|---|---|---|---|---|")
        print(f"| transformers, float32 | {reference.accuracy:.3f} | {reference.normalised:.3f} | | | |")
        for kind in dtype:
            score = asyncio.run(through_the_server(python, path, hf_folder, kind, Path(scratch) / kind))
            off = np.abs(score.log_likelihoods - reference.log_likelihoods)
            same = (score.log_likelihoods.argmax(1) == reference.log_likelihoods.argmax(1)).sum()
            figures = f"{score.accuracy:.3f} | {score.normalised:.3f} | {same} of {len(off)}"
            print(f"| tokenline, {kind} | {figures} | {off.mean():.2g} | {off.max():.2g} |")


if __name__ == "__main__":
    typer.run(main)
