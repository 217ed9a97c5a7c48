"""OpenAI's API over HTTP: routes, what goes in and out, and who may ask."""
