"""`make bench`: tokenline beside its peers, in one run, on one machine, with the same model.

All servers are started first; then every repeat of a workload asks them one after another, so that a busy minute of a
shared machine hits all of them. Prints medians, and the ratio to the best peer, as a Markdown table.
"""

import argparse
import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from pathlib import Path

from bench import servers
from bench.endpoint import Endpoint
from bench.text import Prose
from bench.workloads import REPEATS, WORKLOADS, Figure
from tokenline.models.fetch import resolve_model
from tokenline.render.renderer import Renderer

# OpenVINO runs in process and one request at a time, so only these compare.
PAUSE_S = 0.5  # what one server still has to do after its turn must not fall into that of another
IN_PROCESS_WORKLOADS = {"cold", "hit", "decode"}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file (default: SmolLM2-135M-Instruct)")
    parser.add_argument(
        "--only", default="tokenline,llama.cpp,openvino", help="which servers to start; vllm is one too"
    )
    parser.add_argument("--url", action="append", default=[], metavar="NAME=URL", help="a server that runs already")
    parser.add_argument("--llama-server", type=Path, help="its path, instead of building it")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--repeats", type=int, help="instead of each workload's own number")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--serve", default="", help="further arguments for `tokenline serve`")
    return parser.parse_args()


async def start(stack: AsyncExitStack, arguments: argparse.Namespace, model: Path) -> list[Endpoint]:
    endpoints: list[Endpoint] = []
    for name in filter(None, arguments.only.split(",")):
        if name == "tokenline":
            server = servers.tokenline(model, arguments.threads, *arguments.serve.split())
        elif name == "llama.cpp":
            server = servers.llama_cpp(model, arguments.threads, arguments.llama_server)
        elif name == "openvino":
            server = servers.openvino(model, arguments.threads)
        elif name == "vllm":
            server = servers.vllm(model, arguments.threads)
        else:
            raise SystemExit(f"--only: {name!r} is not one of tokenline, llama.cpp, openvino, vllm")
        endpoints.append(await stack.enter_async_context(server))
    for named in arguments.url:
        name, _, url = named.partition("=")
        endpoints.append(Endpoint(name, url))
    return endpoints


async def measure(endpoints: list[Endpoint], renderer: Renderer, workloads: list[str], repeats: int | None):
    """Figures by name, then by endpoint: one value per repeat. The first round warms up and is not counted."""
    values: dict[str, dict[str, list[float]]] = {}
    kinds: dict[str, Figure] = {}
    for workload in workloads:
        for repeat in range(-1, repeats or REPEATS[workload]):
            for endpoint in endpoints:
                if isinstance(endpoint, servers.OpenVinoEndpoint) and workload not in IN_PROCESS_WORKLOADS:
                    continue
                if repeat < 0 and workload in ("agents", "many"):
                    continue  # every kernel and code path has been used by then
                await asyncio.sleep(PAUSE_S)
                prose = Prose(renderer, f"{workload} {repeat} {endpoint.name} {time.time_ns()}")
                for figure in await WORKLOADS[workload](endpoint, prose):
                    kinds[figure.name] = figure
                    if repeat >= 0:
                        values.setdefault(figure.name, {}).setdefault(endpoint.name, []).append(figure.value)
    return kinds, values


def table(kinds: dict[str, Figure], values: dict[str, dict[str, list[float]]], names: list[str]) -> str:
    lines = [f"| workload | {' | '.join(names)} | ratio to the best peer |", "|---" * (len(names) + 2) + "|"]
    for name, by_endpoint in values.items():
        kind, cells = kinds[name], []
        medians = {endpoint: statistics.median(series) for endpoint, series in by_endpoint.items()}
        for endpoint in names:
            cells.append(f"{medians[endpoint]:,.4g} {kind.unit}".strip() if endpoint in medians else "-")
        peers = [value for endpoint, value in medians.items() if endpoint != names[0]]
        ratio = "-"
        if peers:
            best = max(peers) if kind.higher_is_better else min(peers)
            ratio = f"{medians[names[0]] / best:.2f}x" if best else "-"
        lines.append(f"| {name} | {' | '.join(cells)} | {ratio} |")
    return "\n".join(lines)


async def main() -> None:
    arguments = parse_arguments()
    model = resolve_model(arguments.model)
    renderer = Renderer.from_model(model)
    async with AsyncExitStack() as stack:
        endpoints = await start(stack, arguments, model)
        kinds, values = await measure(endpoints, renderer, arguments.workloads.split(","), arguments.repeats)
        print(f"{model.name}, {arguments.threads} threads, medians, {time.strftime('%Y-%m-%d')}\n")
        print(table(kinds, values, [endpoint.name for endpoint in endpoints]))


if __name__ == "__main__":
    asyncio.run(main())
