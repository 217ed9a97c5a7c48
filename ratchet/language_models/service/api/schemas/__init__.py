"""What comes in and what goes out, as OpenAI's API describes it."""
