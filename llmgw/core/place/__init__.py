"""Where a replica goes: best fit, deterministic, or one sentence naming the tightest resource (A62).

`fit` asks one node, `choose` picks among the answers, `start` words the order for each rank. None may evict, move or
wait: the answer is for one replica against what is held now; the caller counts it in before it asks again.
"""

from llmgw.core.place.choose import NoRoom, Placement, counted, place
from llmgw.core.place.start import start_message

__all__ = ["NoRoom", "Placement", "counted", "place", "start_message"]
