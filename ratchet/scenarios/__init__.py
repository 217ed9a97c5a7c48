"""What is played: one package a scenario, none knows another."""
