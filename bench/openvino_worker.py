"""OpenVINO GenAI in process, for `bench.peers`. Runs in an environment of its own and imports nothing of this project.

Reads one JSON object a line ({"prompt", "max_tokens"}) and answers each with one: when each token arrived, in seconds
since the request was read, and how many tokens the prompt had.
"""

import json
import sys
import time

import openvino_genai as genai  # pyright: ignore[reportMissingImports] (another environment has it)


def main(model: str, threads: str) -> None:
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = True
    scheduler.cache_size = 2  # GB
    pipeline = genai.LLMPipeline(model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=int(threads))
    tokenizer = pipeline.get_tokenizer()
    print(json.dumps({"ready": genai.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        start, arrivals = time.perf_counter(), []

        def arrived(_piece: str, start=start, arrivals=arrivals):
            arrivals.append(time.perf_counter() - start)
            return genai.StreamingStatus.RUNNING

        config = genai.GenerationConfig(
            max_new_tokens=request["max_tokens"], ignore_eos=True, do_sample=False, apply_chat_template=False
        )
        result = pipeline.generate([request["prompt"]], config, arrived)
        total = time.perf_counter() - start
        metrics = result.perf_metrics
        print(
            json.dumps(
                {
                    "total_s": total,
                    "arrivals_s": arrivals,
                    "prompt_tokens": int(tokenizer.encode(request["prompt"]).input_ids.shape[1]),
                    "completion_tokens": int(metrics.get_num_generated_tokens()),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
