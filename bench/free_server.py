"""`python -m bench.free_server MODEL --port N`: the whole server over a model whose step costs next to nothing.

Renderer, engine, routes and HTTP are the real ones; only the matrices are missing. What is left is what the server
itself costs. It says in one line of JSON which of its threads is the engine's, so that the others can be told from it.
"""

import argparse
import json
import threading
from pathlib import Path

import numpy as np

from bench.text import WORDS
from tokenline.engine.engine import Engine
from tokenline.engine.settings import EngineSettings
from tokenline.models.base import Batch, KVPool
from tokenline.models.cpu.logits import NumpyLogits
from tokenline.models.load import read_config
from tokenline.models.memory import available_memory
from tokenline.render.renderer import Renderer
from tokenline.server.app import create_app
from tokenline.server.run import bind, run
from tokenline.server.settings import ServerSettings

POOL_TOKENS = 1 << 20


class NoPool:
    """Blocks without contents."""

    layout = "nothing"

    def __init__(self, num_blocks: int, block_size: int):
        self.num_blocks = num_blocks
        self.block_size = block_size

    def copy_block_prefix(self, source: int, target: int, tokens: int) -> None:
        pass

    def export_block(self, block: int) -> np.ndarray:
        return np.zeros(0, np.uint8)

    def import_block(self, block: int, data: np.ndarray) -> None:
        pass


class FreeModel:
    """Says the words of `ids` one after another: which one follows from the position alone."""

    def __init__(self, path: Path, ids: list[int], max_rows: int):
        self.config = read_config(path)
        self.device = "cpu"
        self.weight_bytes = 0
        self.precision = "none"
        self.arithmetic = "none"
        self._ids = np.asarray(ids)
        self._logits = np.zeros((max_rows, self.config.vocab_size), np.float32)
        self._said = (np.empty(0, np.int64), np.empty(0, np.int64))  # rows and ids of the last step

    def kv_bytes_per_token(self) -> int:
        return 1

    def new_kv_pool(self, num_blocks: int, block_size: int) -> KVPool:
        return NoPool(num_blocks, block_size)

    def free_memory(self) -> int:
        return available_memory()

    def forward(self, batch: Batch, kv: KVPool) -> NumpyLogits:
        self._logits[self._said] = 0
        rows = np.arange(len(batch.logit_rows))
        self._said = rows, self._ids[batch.positions[batch.logit_rows] % len(self._ids)]
        self._logits[self._said] = 1
        return NumpyLogits(self._logits[: len(rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    renderer = Renderer.from_model(arguments.model)
    settings = EngineSettings(kv_cache_memory=POOL_TOKENS)
    model = FreeModel(arguments.model, renderer.tokenizer.encode(" ".join(WORDS)), settings.max_num_seqs)
    app = create_app(renderer, Engine(model, settings), ServerSettings(model_names=("free",)))

    def on_ready(_: str) -> None:
        engine = next(thread for thread in threading.enumerate() if thread.name == "engine")
        print(json.dumps({"engine_thread": engine.native_id}), flush=True)

    run(app, listener=bind("127.0.0.1", arguments.port), on_ready=on_ready)


if __name__ == "__main__":
    main()
