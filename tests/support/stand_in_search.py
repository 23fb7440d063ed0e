"""`python -m finetune search --study ID` whose workers train nothing: the arguments are the store's
folder and the study's id."""

import sys

from finetune.jobs import workers
from finetune.search import command

if __name__ == "__main__":
    workers.WORKER = "tests.support.stand_in"
    sys.exit(command.main(["--runs", sys.argv[1], "--study", sys.argv[2]]))
