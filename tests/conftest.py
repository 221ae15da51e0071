"""What all tests need."""

import resource

_, HARD = resource.getrlimit(resource.RLIMIT_NOFILE)
# chDB keeps some descriptors of each folder that was opened, and a run opens a hundred
resource.setrlimit(resource.RLIMIT_NOFILE, (HARD, HARD))
