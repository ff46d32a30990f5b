"""Control plane, per-node agent and OpenAI gateway for a small fleet of LLM engines."""

__version__ = "0.1.0"
