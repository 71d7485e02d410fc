"""How long a test waits for what must come. It waits for the event itself; this only ends a test that would hang."""

HANG_S = 300.0  # longer than anything here takes on the slowest and busiest machine
