"""OpenAI's API over HTTP: routes, schemas, and access control."""
