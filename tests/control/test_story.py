"""What happened is told once, when it changes."""

from llmgw.control.picture import Moment
from llmgw.control.story import Story


def told(story: Story) -> list[str]:
    return [str(e["why"]) for e in story.events]


def begun() -> Story:
    story = Story()
    story.begin(Moment(0.0, 0.0))
    return story


def test_a_repeated_finding_is_no_news_and_figures_that_tick_are_none_either() -> None:
    story = begun()
    for left in (9, 8, 7):
        story.once("alpha", "wait", f"backing off {left} s")
        story.end_pass()
    story.once("alpha", "wait", "no GPU is free")
    assert told(story) == ["backing off 9 s", "no GPU is free"]


def test_exact_figures_are_news() -> None:
    story = begun()
    for have in (1, 2, 2):
        story.once("r", "replica", f"{have} of 2 shards", exact=True)
        story.end_pass()
    assert told(story) == ["1 of 2 shards", "2 of 2 shards"]


def test_what_was_over_is_news_when_it_comes_again() -> None:
    story = begun()
    story.once("x", "drain", "why")
    story.end_pass()
    story.end_pass()
    story.once("x", "drain", "why")
    assert told(story) == ["why", "why"]


def test_ids_go_on_after_what_an_earlier_control_recorded() -> None:
    story = begun()
    story.tell("inventory", "broken, moved aside")
    story.recall([{"id": 7, "at": "", "kind": "leader", "why": "leads"}])
    story.tell("leader", "leads again")
    assert [e["id"] for e in story.events] == [7, 8, 9]
    assert [e["id"] for e in story.after(8)] == [9]
    assert [e["id"] for e in story.unsaved] == [8, 9]
