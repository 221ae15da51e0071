"""`python -m ltrain_train.learner REQUESTS ANSWERS`: serves two pipes, given by descriptor."""

import sys

from ltrain_train.learner.service import serve_pipes

serve_pipes(sys.argv[1:])
