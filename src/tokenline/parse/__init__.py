"""Layer 4: ids -> text -> content, reasoning, tool calls, stop strings. Knows no engine and no HTTP."""
