"""What is logged about rollouts, losses and messages."""
