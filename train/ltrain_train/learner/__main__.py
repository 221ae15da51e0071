"""`python -m ltrain_train.learner REQUESTS ANSWERS`: serves two pipes, given by descriptor."""

import sys

from ltrain_train.learner.service import main

main(sys.argv[1:])
