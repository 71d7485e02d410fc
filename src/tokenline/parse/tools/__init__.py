"""Tool calls, one module a kind of format. Names of parsers follow vLLM's; `parse/registry.py` lists them."""
