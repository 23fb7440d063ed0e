"""Start the page: `python app.py`. On a Hugging Face Space this file is the Space."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when gradio is imported

from finetune.store import RunStore, default_root
from finetune.ui import page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=None, help="where runs are kept")
    parser.add_argument("--host", default=None, help="address to serve on (default: this machine)")
    parser.add_argument("--port", type=int, default=None, help="port (default: 7860 or the next)")
    given = parser.parse_args()
    store = RunStore(given.runs or default_root())
    print(f"Runs are kept in {store.root}", flush=True)
    page.launch(page.build(store, spare=True), server_name=given.host, server_port=given.port)


if __name__ == "__main__":
    main()
