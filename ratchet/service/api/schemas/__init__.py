"""Schemas of requests and responses, as in OpenAI's API."""
