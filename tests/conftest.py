"""What holds for every test: reproducible hypothesis runs, and no way into the user's own state.

HYPOTHESIS_PROFILE=long looks for new counter-examples; without it the same few are tried each time.
"""

import os
import signal
from functools import cache
from ssl import SSLContext
from typing import Any

from httpx._transports import default as httpx_transports
from hypothesis import HealthCheck, settings

slow_is_fine = (HealthCheck.too_slow,)
settings.register_profile(
    "quick",
    derandomize=True,
    max_examples=60,
    deadline=None,
    suppress_health_check=slow_is_fine,
)
settings.register_profile(
    "long", max_examples=5000, deadline=None, suppress_health_check=slow_is_fine, print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# A test that forgets a flag must not meet a fleet of the person who runs it.
for name in [name for name in os.environ if name.startswith("LLMGW_")]:
    del os.environ[name]
os.environ["NO_COLOR"] = "1"

# Each client of httpx reads all certificates that there are, 27 ms of CPU; hundreds are made here that speak no TLS.
whole: Any = httpx_transports.create_ssl_context  # type: ignore[attr-defined]
once: Any = cache(whole)


def context(**given: Any) -> SSLContext:
    plain = given == {"verify": True, "cert": None, "trust_env": False}
    made: SSLContext = (once if plain else whole)(**given)
    return made


httpx_transports.create_ssl_context = context  # type: ignore[attr-defined, assignment]

# A shell without job control starts its background lanes deaf to Ctrl-C, and what they start inherits it.
signal.signal(signal.SIGINT, signal.default_int_handler)
