"""The `tokenline` command: one module a command."""
