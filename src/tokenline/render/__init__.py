"""Layer 2: chat template + tokenizer, request -> Line, with provenance. Knows JSON values and text; no HTTP."""
