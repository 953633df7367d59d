"""Chunks of one request, put together as they pass."""

from session.engine.port import SampleChunk
from session.sampling.frames import Gathering, from_engine, to_engine


def test_what_came_from_memory_is_part_of_the_answer() -> None:
    gathering = Gathering("smp_1", prompt_tokens=9, n=2)
    chunks = [
        SampleChunk(1, (5,), (-0.5,), cached_tokens=7),
        SampleChunk(0, (6,), (-1.0,), "stop"),
        SampleChunk(1, (4,), (-2.0,), "length"),
    ]
    for chunk in chunks:
        assert to_engine(from_engine(chunk)) == chunk
        gathering.add(from_engine(chunk))
    samples = gathering.samples()
    assert (samples.prompt_tokens, samples.cached_tokens, samples.sampled_tokens) == (9, 7, 3)
    assert [each.tokens.array().tolist() for each in samples.sequences] == [[6], [5, 4]]
