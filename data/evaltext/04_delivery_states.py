"""The life of a delivery order, written as an explicit state machine."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import Callable


class Status(enum.Enum):
    PLACED = "placed"
    COOKING = "cooking"
    READY = "ready"
    ON_THE_ROAD = "on the road"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in (Status.DELIVERED, Status.CANCELLED)

    def __str__(self) -> str:
        return self.value


class Event(enum.Enum):
    ACCEPT = enum.auto()
    FINISH = enum.auto()
    PICK_UP = enum.auto()
    HAND_OVER = enum.auto()
    CANCEL = enum.auto()


TRANSITIONS: dict[tuple[Status, Event], Status] = {
    (Status.PLACED, Event.ACCEPT): Status.COOKING,
    (Status.COOKING, Event.FINISH): Status.READY,
    (Status.READY, Event.PICK_UP): Status.ON_THE_ROAD,
    (Status.ON_THE_ROAD, Event.HAND_OVER): Status.DELIVERED,
    # A guest may change their mind until the food leaves the building.
    (Status.PLACED, Event.CANCEL): Status.CANCELLED,
    (Status.COOKING, Event.CANCEL): Status.CANCELLED,
}


class IllegalTransition(Exception):
    def __init__(self, order: "Order", event: Event) -> None:
        self.order = order
        self.event = event
        allowed = ", ".join(sorted(e.name for e in order.possible_events())) or "nothing"
        super().__init__(f"order {order.number} is {order.status}: {event.name} refused (allowed: {allowed})")


Listener = Callable[["Order", Status, Status], None]


@dataclass
class Order:
    number: int
    status: Status = Status.PLACED
    history: list[Status] = field(default_factory=list, repr=False)
    listeners: list[Listener] = field(default_factory=list, repr=False, compare=False)

    def possible_events(self) -> set[Event]:
        return {event for (status, event) in TRANSITIONS if status is self.status}

    def handle(self, event: Event) -> Status:
        """Move to the next status, tell the listeners, and return it.

        Raises:
            IllegalTransition: the table has no row for this status and event.
        """
        try:
            after = TRANSITIONS[self.status, event]
        except KeyError:
            raise IllegalTransition(self, event) from None
        before, self.status = self.status, after
        self.history.append(before)
        for listener in self.listeners:
            listener(self, before, after)
        return after


def demo():
    arrivals: Counter[str] = Counter()
    order = Order(41, listeners=[lambda o, before, after: arrivals.update([str(after)])])
    for step in (Event.ACCEPT, Event.FINISH, Event.PICK_UP):
        order.handle(step)
    try:
        order.handle(Event.CANCEL)
    except IllegalTransition as problem:
        message = str(problem)
    else:
        message = "cancelled?"
    order.handle(Event.HAND_OVER)
    return order.status.is_final, dict(arrivals), message


if __name__ == "__main__":
    print(*demo(), sep="\n")
