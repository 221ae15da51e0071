"""Programs that run in vLLM's environment and its processes; they import nothing of ltrain."""
