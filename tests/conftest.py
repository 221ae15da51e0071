"""What all tests need."""

import resource
import signal

_, HARD = resource.getrlimit(resource.RLIMIT_NOFILE)
# chDB keeps some descriptors of each folder that was opened, and a run opens a hundred
resource.setrlimit(resource.RLIMIT_NOFILE, (HARD, HARD))

# a job in the background ignores these signals, and so would every process that a test starts
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
