"""A run on disk: its folder, its events, and the state they add up to."""
