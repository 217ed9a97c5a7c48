"""Fine-tuning jobs: made once, run one at a time, kept."""
