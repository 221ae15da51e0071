"""`python -m ltrain_train.learner REQUESTS ANSWERS`: serve two pipes by their numbers."""

import sys

from ltrain_train.learner.service import main

main(sys.argv[1:])
