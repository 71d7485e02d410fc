"""Benchmarks against peers and against the machine's own limits. Speed lives here and never in a test."""
