"""Training with verl and Ray: from sample rows to optimizer steps, models and checkpoints."""
