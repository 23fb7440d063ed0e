"""One module for each tab of the page."""
