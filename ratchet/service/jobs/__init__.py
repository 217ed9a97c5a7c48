"""Fine-tuning jobs: created once, run one at a time, stored."""
