"""`python -m finetune search --study ID` whose workers train nothing: the arguments are the store's
folder and the study's id. It says when it is there."""

import sys

from finetune.cli import search
from finetune.jobs import workers

if __name__ == "__main__":
    workers.WORKER = "tests.support.stand_in"
    print("there", flush=True)
    sys.exit(search.search(["--runs", sys.argv[1], "--study", sys.argv[2]]))
