"""Running models: folders, tokenizers, and engines that generate."""
