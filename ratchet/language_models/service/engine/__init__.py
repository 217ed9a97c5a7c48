"""Models at run time: folders, tokenizers, and engines that generate."""
