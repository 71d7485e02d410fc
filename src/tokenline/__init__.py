"""tokenline: an OpenAI-compatible LLM server whose prompt cache can be seen, explained and protected."""

from importlib.metadata import version

__version__ = version("tokenline")
