"""`python -m tokenline` is `tokenline`."""

from tokenline.cli.main import app

app()
