"""Where a replica goes: best fit, deterministic, or one sentence naming the tightest resource (A62).

`fit` asks one node, `choose` picks among the answers, `start` words the order for each rank. None may evict, move or
wait: the answer is for one replica against what is held now; the caller counts it in before it asks again.
"""

from llmgw.core.place.choose import NoRoom, Placement, counted, find, place, take
from llmgw.core.place.fleet import Fleet
from llmgw.core.place.room import Idle, Room, make_room, room_in
from llmgw.core.place.start import start_message
from llmgw.core.place.together import Planned, replanned

__all__ = [
    "Fleet",
    "Idle",
    "NoRoom",
    "Placement",
    "Planned",
    "Room",
    "counted",
    "find",
    "make_room",
    "place",
    "replanned",
    "room_in",
    "start_message",
    "take",
]
