"""Pairs of any source, checked and split. `root` is everywhere the folder of `RunStore.root`."""
