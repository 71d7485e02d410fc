"""Layer 3: scheduler, prefix cache, KV pool, model runner, sampler. Knows ids only: no text, no JSON, no HTTP."""
