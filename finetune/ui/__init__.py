"""The page: the only place that knows Gradio. One module a tab; tabs do not import each other."""

__all__ = ["app"]
