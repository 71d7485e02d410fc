"""OpenAI's protocol, a shell of the service: wire in (`wire`, `read`), wire out (`chat`, `completions`, `answers`)."""
