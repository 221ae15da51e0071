"""`ltrain ui`: pages in a browser on runs, waves, rollouts, policies and datasets."""
