"""Training: rows in, optimizer steps under verl and Ray, model directories and checkpoints out."""
