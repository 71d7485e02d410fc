"""Layers 1 and 5: HTTP routes, wire types, SSE frames, usage, errors, auth."""
