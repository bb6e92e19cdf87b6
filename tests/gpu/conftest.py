"""What the tests on a GPU share."""

import os

# torch.compile's pool of processes can outlive a test process's end by five minutes, waited for all that time.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
